#include "base/npy.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"

// Format: "NEP 1 - A simple file format for NumPy arrays" and numpy/lib/format.py.

namespace segue::base {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kAlignment = 64;
constexpr int kGrowthDigits = 21;  // NumPy leaves room to rewrite the first extent in place

/// Bytes of one element; nullopt for a word that is not a plain little-endian element type.
std::optional<size_t> element_size(std::string_view descr) {
  if (descr.size() < 3) return std::nullopt;
  size_t bytes = 0;
  const char* const end = descr.data() + descr.size();
  const auto [stop, error] = std::from_chars(descr.data() + 2, end, bytes);
  if (error != std::errc() || stop != end || bytes > 1u << 20) return std::nullopt;
  const auto one_of = [bytes](std::initializer_list<size_t> sizes) {
    return std::find(sizes.begin(), sizes.end(), bytes) != sizes.end();
  };
  bool known = false;
  switch (descr[1]) {
    case 'b':
      known = one_of({1});
      break;
    case 'i':
    case 'u':
      known = one_of({1, 2, 4, 8});
      break;
    case 'f':
      known = one_of({2, 4, 8});
      break;
    case 'c':
      known = one_of({8, 16});
      break;
    case 'S':
    case 'V':
      known = bytes > 0;
      break;  // raw bytes; extension types such as bfloat16 are "<V2"
    default:
      break;
  }
  const bool order_matters = bytes > 1 && descr[1] != 'S';
  if (!known || !(descr[0] == '<' || (descr[0] == '|' && (!order_matters || descr[1] == 'V')))) {
    return std::nullopt;
  }
  return bytes;
}

/// Number of elements; nullopt if it does not fit or an extent is negative.
std::optional<int64_t> product(std::span<const int64_t> shape) {
  int64_t total = 1;
  for (const int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(total, extent, &total)) return std::nullopt;
  }
  return total;
}

struct Header {
  std::string descr;
  std::vector<int64_t> shape;
};

/// Reads the header, a Python dict literal with exactly three known keys.
class HeaderParser {
 public:
  HeaderParser(const std::string& path, std::string_view text) : path_(path), text_(text) {}

  Header parse() {
    Header header;
    bool has_descr = false, has_order = false, has_shape = false;
    expect('{');
    while (!accept('}')) {
      const std::string key = string();
      expect(':');
      if (key == "descr" && !has_descr) {
        has_descr = true;
        if (peek() == '[') unsupported("a structured element type");
        header.descr = string();
      } else if (key == "fortran_order" && !has_order) {
        has_order = true;
        if (boolean()) unsupported("Fortran order");
      } else if (key == "shape" && !has_shape) {
        has_shape = true;
        header.shape = tuple();
      } else {
        corrupt(fmt::format("unexpected or repeated key '{}'", key));
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (position_ != text_.size()) corrupt("text after the dict");
    if (!has_descr || !has_order || !has_shape) corrupt("a key is missing");
    return header;
  }

 private:
  [[noreturn]] void corrupt(std::string_view what) const {
    fail(ErrorCode::kCorrupt,
         fmt::format("{}: broken .npy header: {} (at character {})", path_, what, position_));
  }
  [[noreturn]] void unsupported(std::string_view what) const {
    fail(ErrorCode::kUnsupported,
         fmt::format("{}: .npy array with {}; save it in C order with a plain little-endian type",
                     path_, what));
  }

  void skip_space() {
    position_ = std::min(text_.find_first_not_of(" \t\n\r", position_), text_.size());
  }
  char peek() {
    skip_space();
    return position_ < text_.size() ? text_[position_] : '\0';
  }
  bool accept(char c) {
    if (peek() != c || position_ >= text_.size()) return false;
    ++position_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) corrupt(fmt::format("expected '{}'", c));
  }

  std::string string() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') corrupt("expected a string");
    const size_t begin = ++position_;
    const size_t end = text_.find(quote, begin);
    if (end == std::string_view::npos) corrupt("a string without end");
    const std::string_view value = text_.substr(begin, end - begin);
    if (value.find('\\') != std::string_view::npos) corrupt("an escape in a string");
    position_ = end + 1;
    return std::string(value);
  }

  bool boolean() {
    skip_space();
    for (const bool value : {true, false}) {
      const std::string_view word = value ? "True" : "False";
      if (text_.substr(position_).starts_with(word)) {
        position_ += word.size();
        return value;
      }
    }
    corrupt("expected True or False");
  }

  std::vector<int64_t> tuple() {
    std::vector<int64_t> values;
    expect('(');
    while (!accept(')')) {
      skip_space();
      int64_t value = 0;
      const char* const begin = text_.data() + position_;
      const auto [stop, error] = std::from_chars(begin, text_.data() + text_.size(), value);
      if (error != std::errc()) corrupt("an extent that is not a 64-bit integer");
      if (value < 0) corrupt("a negative extent");
      position_ += static_cast<size_t>(stop - begin);
      values.push_back(value);
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    return values;
  }

  const std::string& path_;
  std::string_view text_;
  size_t position_ = 0;
};

struct Layout {
  std::string_view header;
  size_t data_begin = 0;
};

/// Finds the header text: magic, version, header length (2 bytes in version 1, 4 later).
Layout find_header(const std::string& path, std::string_view file) {
  const auto corrupt = [&path](std::string_view what) {
    fail(ErrorCode::kCorrupt, fmt::format("{}: not a .npy file: {}", path, what));
  };
  if (!file.starts_with(kMagic)) corrupt("wrong magic");
  if (file.size() < kMagic.size() + 2) corrupt("no version");
  const int major = static_cast<unsigned char>(file[kMagic.size()]);
  const int minor = static_cast<unsigned char>(file[kMagic.size() + 1]);
  if (major < 1 || major > 3 || minor != 0) {
    corrupt(fmt::format("unknown format version {}.{}", major, minor));
  }
  const size_t length_bytes = major == 1 ? 2 : 4;
  const size_t begin = kMagic.size() + 2 + length_bytes;
  if (file.size() < begin) corrupt("no header");
  size_t length = 0;
  for (size_t i = length_bytes; i-- > 0;) {
    length = length << 8 | static_cast<unsigned char>(file[kMagic.size() + 2 + i]);
  }
  if (length > file.size() - begin) {
    corrupt(fmt::format("header of {} bytes in a file of {}", length, file.size()));
  }
  return {file.substr(begin, length), begin + length};
}

}  // namespace

NpyFile::NpyFile(const std::string& path) : NpyFile(std::make_unique<MappedFile>(path), path) {}

NpyFile::NpyFile(std::unique_ptr<MappedFile> file, const std::string& path)
    : NpyFile(file->bytes(), path) {
  file_ = std::move(file);
}

NpyFile::NpyFile(std::span<const std::byte> file, const std::string& path) : path_(path) {
  const Layout layout =
      find_header(path, {reinterpret_cast<const char*>(file.data()), file.size()});
  Header header = HeaderParser(path, layout.header).parse();
  descr_ = std::move(header.descr);
  shape_ = std::move(header.shape);
  data_ = file.subspan(layout.data_begin);

  const std::optional<size_t> element = element_size(descr_);
  if (!element) {
    fail(ErrorCode::kUnsupported,
         fmt::format("{}: element type '{}'; Segue reads little-endian booleans, integers, floats "
                     "and raw bytes",
                     path, descr_));
  }
  const std::optional<int64_t> count = product(shape_);
  size_t expected = 0;
  if (!count || __builtin_mul_overflow(static_cast<size_t>(*count), *element, &expected)) {
    fail(ErrorCode::kCorrupt, fmt::format("{}: a shape too large to exist", path));
  }
  if (data_.size() != expected) {
    fail(ErrorCode::kCorrupt, fmt::format("{}: holds {} bytes of data, but its header announces {}",
                                          path, data_.size(), expected));
  }
}

NpyFile::~NpyFile() = default;
NpyFile::NpyFile(NpyFile&&) noexcept = default;

const FileIdentity& NpyFile::identity() const {
  SEGUE_ASSERT(file_ != nullptr, "bytes in memory have no identity");
  return file_->identity();
}

int64_t NpyFile::elements() const { return product(shape_).value_or(0); }

const void* NpyFile::checked_data(std::string_view expected_descr, size_t element_bytes) const {
  SEGUE_ASSERT(element_size(expected_descr) == element_bytes, "type and descr differ in size");
  if (descr_ != expected_descr) {
    fail(ErrorCode::kCorrupt,
         fmt::format("{}: elements are '{}', expected '{}'", path_, descr_, expected_descr));
  }
  // What a type of this size may need: the largest power of two that divides it, at most 16.
  const size_t alignment = std::min<size_t>(element_bytes & (~element_bytes + 1), 16);
  if (reinterpret_cast<uintptr_t>(data_.data()) % alignment != 0) {
    fail(ErrorCode::kUnsupported,
         fmt::format("{}: data is not aligned to {} bytes; save it again with NumPy", path_,
                     alignment));
  }
  return data_.data();
}

std::string npy_header(std::string_view descr, std::span<const int64_t> shape) {
  std::string text = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': (", descr);
  for (size_t i = 0; i < shape.size(); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : ", ", shape[i]);
  text += shape.size() == 1 ? ",), }" : "), }";
  if (!shape.empty()) {
    text.append(static_cast<size_t>(kGrowthDigits) - std::to_string(shape[0]).size(), ' ');
  }
  // Version 2 only when two bytes cannot hold the length. NumPy pads by 1 to 64 bytes, never by 0.
  for (const size_t length_bytes : {2u, 4u}) {
    const size_t fixed = kMagic.size() + 2 + length_bytes;
    const size_t padding = kAlignment - (fixed + text.size() + 1) % kAlignment;
    const size_t length = text.size() + padding + 1;
    if (length_bytes == 2 && length > std::numeric_limits<uint16_t>::max()) continue;
    std::string header(kMagic);
    header += length_bytes == 2 ? '\1' : '\2';
    header += '\0';
    for (size_t i = 0; i < length_bytes; ++i) header += static_cast<char>(length >> (8 * i));
    header += text;
    header.append(padding, ' ');
    header += '\n';
    return header;
  }
  fail(ErrorCode::kInvalidArgument, "npy: a header of this length cannot be written");
}

void write_npy(const std::string& path, std::string_view descr, std::span<const int64_t> shape,
               std::span<const std::byte> data) {
  const std::optional<size_t> element = element_size(descr);
  const std::optional<int64_t> count = product(shape);
  if (!element || !count || data.size() != static_cast<size_t>(*count) * *element) {
    fail(ErrorCode::kInvalidArgument,
         fmt::format("{}: {} bytes are not an array of '{}' with {} dimensions", path, data.size(),
                     descr, shape.size()));
  }
  AtomicFile file(path);
  file.write(npy_header(descr, shape));
  file.write(data.data(), data.size());
  file.commit();
}

}  // namespace segue::base
