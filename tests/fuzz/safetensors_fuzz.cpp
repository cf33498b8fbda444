// A safetensors file: opened, every tensor read, and written again.
// Input: 0 and a whole file; or another byte, a header up to a zero byte, and data.

#include <cstring>
#include <vector>

#include "base/bf16.h"
#include "base/safetensors.h"
#include "fuzz.h"

namespace {

using namespace segue;

std::string file_of(fuzz::Input input) {
  if (input.byte() == 0) return std::string(input.rest());
  const std::string_view header = input.before('\0');
  const uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof(length));
  return file.append(header).append(input.rest());
}

void read_all(const base::SafetensorsEntry& entry) {
  if (const auto values = fuzz::accepted([&] { return entry.to_doubles(); })) {
    fuzz::require(static_cast<int64_t>(values->size()) == entry.elements(),
                  "a tensor has as many values as its shape says");
  }
  if (const auto values = fuzz::accepted([&] { return entry.to_ints(); })) {
    fuzz::require(static_cast<int64_t>(values->size()) == entry.elements(),
                  "a tensor has as many values as its shape says");
  }
  fuzz::accepted_all([&] {
    for (const float value : entry.as<float>("F32")) fuzz::touch(value);
  });
  fuzz::accepted_all([&] {
    for (const bf16 value : entry.as<bf16>("BF16")) fuzz::touch(static_cast<float>(value));
  });
}

std::string written(const base::SafetensorsFile& file) {
  std::vector<base::SafetensorsItem> items;
  for (const auto& [name, entry] : file.tensors()) {
    items.push_back({name, entry.dtype, entry.shape, entry.bytes.data()});
  }
  const base::SafetensorsLayout layout = base::safetensors_layout("copy", items, file.metadata());
  std::string text = layout.header;
  for (const size_t i : layout.data_order) {
    const auto bytes = file.get(items[i].name).bytes;
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text = file_of({data, size});
  const auto file = fuzz::accepted(
      [&] { return base::SafetensorsFile(fuzz::bytes_of(text), "fuzz.safetensors"); });
  if (!file) return 0;
  for (const auto& [name, entry] : file->tensors()) read_all(entry);
  fuzz::accepted_all([&] { file->get("embedding"); });

  const std::string copy = written(*file);
  const base::SafetensorsFile again(fuzz::bytes_of(copy), "copy.safetensors");
  fuzz::require(
      again.metadata() == file->metadata() && again.tensors().size() == file->tensors().size(),
      "metadata and tensors come back");
  for (const auto& [name, entry] : file->tensors()) {
    const base::SafetensorsEntry& other = again.get(name);
    fuzz::require(other.dtype == entry.dtype && other.shape == entry.shape &&
                      fuzz::same_bytes(other.bytes, entry.bytes),
                  "what was written is what was read");
  }
  return 0;
}
