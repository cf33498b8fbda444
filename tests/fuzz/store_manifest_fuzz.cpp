// The manifest of a store: read, asked, written again.
// Input: whether to seal, then JSON. A sealed one gets the checksum of its own members.

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "data/store/store_manifest.h"
#include "fuzz.h"

namespace {

using namespace segue;
using Json = nlohmann::ordered_json;

std::string sealed(std::string_view text) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::string(text);
  json.erase("checksum");
  const auto replace = Json::error_handler_t::replace;
  json["checksum"] = fmt::format("{:016x}", base::xxh64(json.dump(-1, ' ', false, replace)));
  return json.dump(2, ' ', false, replace);
}

void use(const data::StoreManifest& manifest) {
  fuzz::require(!manifest.cache_folder().empty(), "a store has a folder of columns");
  for (const int64_t floor : manifest.min_history) {
    fuzz::touch(manifest.find(data::positions_file(manifest.history_length, floor)));
    fuzz::touch(manifest.find(data::anchor_ts_file(manifest.history_length, floor)));
  }
  const std::string text = manifest.to_json();
  fuzz::require(data::StoreManifest::from_json(text, "copy.json").to_json() == text,
                "what was written is what was read");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const bool seal = input.byte() % 2 != 0;
  const std::string text = seal ? sealed(input.rest()) : std::string(input.rest());
  const auto manifest =
      fuzz::accepted([&] { return data::StoreManifest::from_json(text, "manifest.json"); });
  if (manifest) use(*manifest);
  return 0;
}
