// A file derived from a store: opened by its fingerprint, its sections read.
// Input: what to seal, how many sizes of sections follow, then in words of 8 bytes the fingerprint,
// the number of sections, those sizes and the number of blocks, then the payload.

#include <cstring>
#include <vector>

#include "base/hash.h"
#include "data/store/index_file.h"
#include "memory_file.h"

namespace {

using namespace segue;

constexpr size_t kHeaderBytes = 4096;
constexpr size_t kSections = 64;
constexpr uint64_t kMagic = 0x3158444E49474553ull;

/// The header as index_file.cpp lays it out.
struct Header {
  uint64_t magic = kMagic;
  uint64_t checksum = 0;
  uint64_t fingerprint = 0;
  int64_t num_sections = 0;
  int64_t section_bytes[kSections] = {};
  int64_t num_blocks = 0;
  uint64_t blocks_checksum = 0;
};

void take(fuzz::Input& input, void* to, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) static_cast<uint8_t*>(to)[i] = input.byte();
}

std::string file_of(fuzz::Input input, Header& header) {
  const uint8_t how = input.byte();
  const size_t named = input.byte() % 8u;
  take(input, &header.fingerprint, 2 * sizeof(uint64_t));
  take(input, header.section_bytes, named * sizeof(int64_t));
  take(input, &header.num_blocks, sizeof(int64_t));
  const std::string_view payload = input.rest();
  std::string file(kHeaderBytes, '\0');
  file += payload;
  if (how % 2 != 0) {  // as a writer would: one block, its checksum at the end
    const uint64_t checksum = base::xxh64(payload);
    file.append(reinterpret_cast<const char*>(&checksum), sizeof(checksum));
    header.blocks_checksum = base::xxh64(&checksum, sizeof(checksum));
  }
  if (how % 4 != 3) {
    header.checksum = base::xxh64(&header.fingerprint, sizeof(Header) - 2 * sizeof(uint64_t));
  }
  std::memcpy(file.data(), &header, sizeof(header));
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Header header;
  const fuzz::MemoryFile file(file_of({data, size}, header));
  std::string why;
  const auto index = data::IndexFile::open(file.path(), header.fingerprint, why);
  fuzz::require(index.has_value() == why.empty(), "a file that is not opened has a reason");
  fuzz::require(data::IndexFile::find_damage(file.path()).empty() == index.has_value(),
                "a small file is checked as a whole when it is opened");
  if (!index) return 0;
  for (int64_t i = 0; i < header.num_sections; ++i) {
    const auto section = index->section<uint8_t>(static_cast<size_t>(i));
    fuzz::require(static_cast<int64_t>(section.size()) == header.section_bytes[i],
                  "a section has the size that the header says");
    for (const uint8_t byte : section) fuzz::touch(byte);
  }
  return 0;
}
