// The manifest of a version.
// Input: whether to seal, then the text; a sealed one is a JSON object without its last line, which
// gets the checksum.

#include <fmt/format.h>

#include "base/hash.h"
#include "base/sealed_json.h"
#include "fuzz.h"
#include "publish/version_manifest.h"

namespace {

using namespace segue;

std::string sealed(std::string_view body) {
  return fmt::format("{},\n  \"checksum\": \"{}\"\n}}\n", body, base::hex64(base::xxh64(body)));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const bool seal = input.byte() % 2 != 0;
  const std::string text = seal ? sealed(input.rest()) : std::string(input.rest());
  const auto manifest =
      fuzz::accepted([&] { return publish::VersionManifest::parse(text, "manifest.json"); });
  if (!manifest) return 0;
  fuzz::touch(manifest->bytes());
  fuzz::require(manifest->file_names().size() == manifest->files.size(), "every file is named");
  for (const publish::PublishedTable& table : manifest->tables) {
    fuzz::touch(table.rows * publish::RowCodec(manifest->dtype, table.dim).row_bytes());
  }
  const std::string again = manifest->text();
  fuzz::require(publish::VersionManifest::parse(again, "copy").text() == again,
                "what was written is what was read");
  return 0;
}
