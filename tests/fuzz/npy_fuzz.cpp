// A .npy file: opened, read as the types that stores hold, and written again.

#include "base/npy.h"
#include "fuzz.h"

namespace {

using namespace segue;

template <class T>
void read_as(const base::NpyFile& file, std::string_view descr) {
  fuzz::accepted_all([&] {
    for (const T value : file.as<T>(descr)) fuzz::touch(value);
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = fuzz::accepted(
      [&] { return base::NpyFile(std::as_bytes(std::span(data, size)), "fuzz.npy"); });
  if (!file) return 0;
  read_as<int64_t>(*file, "<i8");
  read_as<int32_t>(*file, "<i4");
  read_as<uint32_t>(*file, "<u4");
  read_as<uint8_t>(*file, "|b1");
  read_as<int8_t>(*file, "|i1");
  read_as<float>(*file, "<f4");
  read_as<double>(*file, "<f8");

  std::string copy = base::npy_header(file->descr(), file->shape());
  copy.append(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size());
  const base::NpyFile again(fuzz::bytes_of(copy), "copy.npy");
  fuzz::require(again.descr() == file->descr() && again.shape() == file->shape() &&
                    fuzz::same_bytes(again.bytes(), file->bytes()),
                "what was written is what was read");
  return 0;
}
