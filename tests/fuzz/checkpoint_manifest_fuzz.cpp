// The manifest of a checkpoint, and the record that a rank leaves for it.
// Input: which of them and whether to seal, then the text; a sealed one is a JSON object without
// its last line, which gets the checksum.

#include <fmt/format.h>

#include "base/hash.h"
#include "fuzz.h"
#include "train/checkpoint/checkpoint_manifest.h"

namespace {

using namespace segue;

std::string sealed(std::string_view body) {
  return fmt::format("{},\n  \"checksum\": \"{:016x}\"\n}}\n", body, base::xxh64(body));
}

void use(const train::CheckpointManifest& manifest) {
  fuzz::touch(manifest.bytes());
  fuzz::touch(train::part_problems(manifest.parts).size());
  // A state that is no object is refused here, as it is when a run reads it.
  const auto text = fuzz::accepted([&] { return manifest.text(); });
  if (!text) return;
  fuzz::require(train::CheckpointManifest::parse(*text, "copy").text() == *text,
                "what was written is what was read");
}

void use(const train::RankRecord& record) {
  fuzz::touch(train::part_problems(record.parts).size());
  const std::string text = record.text();
  fuzz::require(train::RankRecord::parse(text, "copy").text() == text,
                "what was written is what was read");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const uint8_t how = input.byte();
  const std::string text = how % 2 != 0 ? sealed(input.rest()) : std::string(input.rest());
  if (how % 4 < 2) {
    const auto manifest =
        fuzz::accepted([&] { return train::CheckpointManifest::parse(text, "manifest.json"); });
    if (manifest) use(*manifest);
  } else {
    const auto record =
        fuzz::accepted([&] { return train::RankRecord::parse(text, "rank0001.json"); });
    if (record) use(*record);
  }
  return 0;
}
