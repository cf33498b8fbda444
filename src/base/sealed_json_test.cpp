#include "base/sealed_json.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/test_util.h"

namespace segue::base {
namespace {

TEST(SealedJson, ComesBackAsItWasSealed) {
  const CheckedJson object = {{"b", 1}, {"a", {1, 2}}};
  const std::string text = seal_json(object);
  CheckedJson back;
  unseal_json(text, "m.json", [&](const CheckedJson& j) { back = j; });
  EXPECT_EQ(back["checksum"], hex64(seal_of(text)));
  back.erase("checksum");
  EXPECT_EQ(back, object);
}

TEST(SealedJson, ShowsEveryChangedByteAndEveryCut) {
  const std::string text = seal_json({{"step", 12}, {"files", CheckedJson::array()}});
  const auto ignore = [](const CheckedJson&) {};
  for (size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] ^= 1;
    EXPECT_TRUE(
        contains(message_of(ErrorCode::kCorrupt, [&] { unseal_json(changed, "m.json", ignore); }),
                 "m.json"));
    EXPECT_THROW(unseal_json(text.substr(0, i), "m.json", ignore), Error);
  }
}

TEST(SealedJson, TellsWhereWhatIsInItIsWrong) {
  const std::string text = seal_json({{"step", "x"}});
  const auto use = [](const CheckedJson& j) { (void)whole_number(j, "step"); };
  EXPECT_TRUE(contains(message_of(ErrorCode::kCorrupt, [&] { unseal_json(text, "m.json", use); }),
                       "m.json: broken manifest: `step`"));
}

TEST(SealedJson, ReadsFilesWithSuspicion) {
  const FileRecord record{.name = "a", .bytes = 3, .xxh64 = 0xabc};
  CheckedJson manifest = {{"files", to_json(std::vector{record})}};
  const std::vector<FileRecord> back = files_from_json(manifest);
  ASSERT_EQ(back.size(), 1u);
  EXPECT_EQ(back[0].name, "a");
  EXPECT_EQ(back[0].bytes, 3);
  EXPECT_EQ(back[0].xxh64, 0xabcu);
  manifest["files"].push_back(manifest["files"][0]);
  EXPECT_TRUE(contains(message_of(ErrorCode::kCorrupt, [&] { files_from_json(manifest); }),
                       "file `a` is there twice"));
  manifest["files"] = {{{"name", "a"}, {"bytes", -1}, {"xxh64", hex64(0)}}};
  EXPECT_THROW(files_from_json(manifest), Error);
  for (const char* text : {"", "12", "00000000000000zz", "-000000000000001"}) {
    EXPECT_THROW(from_hex64(text), Error) << text;
  }
}

}  // namespace
}  // namespace segue::base
