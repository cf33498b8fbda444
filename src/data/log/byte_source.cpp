#include "data/log/byte_source.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>

#include "base/error.h"
#include "base/file_io.h"

namespace segue::data {
namespace {

constexpr size_t kBuffer = 1 << 20;

/// The packed bytes of a file, block after block.
class PackedFile {
 public:
  explicit PackedFile(const std::string& path) : file_(path), buffer_(kBuffer) {}

  /// Bytes that have not been used; empty only at the end of the file.
  std::string_view rest() {
    if (begin_ == end_) {
      end_ = file_.read_at(offset_, buffer_.data(), buffer_.size());
      begin_ = 0;
      offset_ += static_cast<int64_t>(end_);
    }
    return {buffer_.data() + begin_, end_ - begin_};
  }
  void use(size_t bytes) { begin_ += bytes; }
  int64_t used() const { return offset_ - static_cast<int64_t>(end_ - begin_); }

  [[noreturn]] void fail_damaged(const char* what) const {
    fail(ErrorCode::kCorrupt,
         fmt::format("{}: {} near byte {}; the file is damaged or not complete", file_.path(), what,
                     used()));
  }

 private:
  base::InputFile file_;
  std::vector<char> buffer_;
  size_t begin_ = 0, end_ = 0;
  int64_t offset_ = 0;
};

class Gunzip {
 public:
  explicit Gunzip(const std::string& path) : file_(path) {
    if (inflateInit2(&stream_, kGzip) != Z_OK) fail(ErrorCode::kOutOfMemory, "zlib: no memory");
  }
  ~Gunzip() { inflateEnd(&stream_); }
  Gunzip(const Gunzip&) = delete;
  Gunzip& operator=(const Gunzip&) = delete;

  size_t read(char* data, size_t bytes) {
    stream_.next_out = reinterpret_cast<Bytef*>(data);
    stream_.avail_out = static_cast<uInt>(bytes);
    while (stream_.avail_out > 0) {
      const std::string_view packed = file_.rest();
      if (packed.empty()) {
        if (inside_) file_.fail_damaged("the end is missing");
        break;
      }
      inside_ = true;
      stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
      stream_.avail_in = static_cast<uInt>(packed.size());
      const int result = inflate(&stream_, Z_NO_FLUSH);
      file_.use(packed.size() - stream_.avail_in);
      if (result == Z_STREAM_END) {
        inside_ = false;
        inflateReset(&stream_);
      } else if (result != Z_OK) {
        file_.fail_damaged("cannot be unpacked (gzip)");
      }
    }
    return bytes - stream_.avail_out;
  }
  int64_t used() const { return file_.used(); }

 private:
  static constexpr int kGzip = 15 + 16;  // zlib's largest window, with a header of gzip

  PackedFile file_;
  z_stream stream_{};
  bool inside_ = false;  // a part has begun and not ended
};

class Unzstd {
 public:
  explicit Unzstd(const std::string& path) : file_(path), stream_(ZSTD_createDStream()) {
    if (!stream_) fail(ErrorCode::kOutOfMemory, "zstd: no memory");
  }

  size_t read(char* data, size_t bytes) {
    ZSTD_outBuffer out{data, bytes, 0};
    while (out.pos < bytes) {
      const std::string_view packed = file_.rest();
      if (packed.empty()) {
        if (inside_) file_.fail_damaged("the end is missing");
        break;
      }
      ZSTD_inBuffer in{packed.data(), packed.size(), 0};
      const size_t result = ZSTD_decompressStream(stream_.get(), &out, &in);
      file_.use(in.pos);
      if (ZSTD_isError(result) != 0) file_.fail_damaged("cannot be unpacked (zstd)");
      inside_ = result != 0;
    }
    return out.pos;
  }
  int64_t used() const { return file_.used(); }

 private:
  struct Free {
    void operator()(ZSTD_DStream* stream) const { ZSTD_freeDStream(stream); }
  };
  PackedFile file_;
  std::unique_ptr<ZSTD_DStream, Free> stream_;
  bool inside_ = false;
};

template <class Unpacker>
ByteSource unpacked(const std::string& path) {
  const auto unpacker = std::make_shared<Unpacker>(path);
  return {path, [unpacker](char* data, size_t bytes) { return unpacker->read(data, bytes); },
          [unpacker] { return unpacker->used(); }, kBuffer};
}

ByteSource plain(const std::string& path) {
  struct Plain {
    explicit Plain(const std::string& name) : file(name) {}
    base::InputFile file;
    int64_t offset = 0;
  };
  const auto plain = std::make_shared<Plain>(path);
  return {path,
          [plain](char* data, size_t bytes) {
            const size_t n = plain->file.read_at(plain->offset, data, bytes);
            plain->offset += static_cast<int64_t>(n);
            return n;
          },
          [plain] { return plain->offset; },
          std::min<size_t>(kBuffer, static_cast<size_t>(plain->file.size()) + 1)};
}

}  // namespace

ByteSource open_bytes(const std::string& path) {
  char start[4] = {};
  const std::string_view head(start, base::InputFile(path).read_at(0, start, sizeof(start)));
  if (head.starts_with("\x1f\x8b")) return unpacked<Gunzip>(path);
  if (head.starts_with("\x28\xb5\x2f\xfd")) return unpacked<Unzstd>(path);
  for (const auto& [magic, name] :
       {std::pair<std::string_view, const char*>("PK\x03\x04", "zip"), {"BZh", "bzip2"}}) {
    if (!head.starts_with(magic)) continue;
    fail(ErrorCode::kUnsupported,
         fmt::format("{}: is compressed ({}); unpack it first, or bring gzip or zstd", path, name));
  }
  return plain(path);
}

ByteSource text_bytes(std::string_view text, const std::string& path, size_t buffer_bytes) {
  const auto offset = std::make_shared<size_t>(0);
  return {path,
          [text, offset](char* data, size_t bytes) {
            const size_t n = text.copy(data, bytes, *offset);
            *offset += n;
            return n;
          },
          [offset] { return static_cast<int64_t>(*offset); }, buffer_bytes};
}

}  // namespace segue::data
