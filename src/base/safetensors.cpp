#include "base/safetensors.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/bf16.h"
#include "base/config.h"
#include "base/error.h"
#include "base/file.h"

// Format: https://github.com/huggingface/safetensors#format. Eight bytes of header length, a JSON
// header, the data of all tensors without gaps.

namespace segue::base {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::string_view kMetadata = "__metadata__";

struct Dtype {
  std::string_view name;
  size_t bytes;
};
constexpr Dtype kDtypes[] = {
    {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1},
    {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},     {"U32", 4},
    {"F32", 4},  {"I64", 8}, {"U64", 8}, {"F64", 8},     {"C64", 8},
};

/// Bytes of one element; 0 for a word the format does not know.
size_t dtype_bytes(std::string_view name) {
  for (const Dtype& dtype : kDtypes) {
    if (dtype.name == name) return dtype.bytes;
  }
  return 0;
}

/// Bytes of a whole tensor; nullopt if they do not fit into 63 bits or an extent is negative.
std::optional<int64_t> tensor_bytes(std::span<const int64_t> shape, size_t element_bytes) {
  auto total = static_cast<int64_t>(element_bytes);
  for (const int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(total, extent, &total)) return std::nullopt;
  }
  return total;
}

[[noreturn]] void corrupt(const std::string& path, std::string_view what) {
  fail(ErrorCode::kCorrupt, fmt::format("{}: broken safetensors file: {}", path, what));
}

/// JSON text to a tree. Repeated keys, which the parser would let the last one win, are an error:
/// two readers of one file must not see two different files.
Json parse_header(const std::string& path, std::string_view text) {
  constexpr int kMaxDepth = 8;
  std::vector<std::set<std::string>> open_objects;
  const auto check = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kMaxDepth) corrupt(path, "header nested too deeply");
    if (event == Json::parse_event_t::object_start) open_objects.emplace_back();
    if (event == Json::parse_event_t::object_end) open_objects.pop_back();
    if (event == Json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!open_objects.back().insert(key).second) {
        corrupt(path, fmt::format("key `{}` appears twice", key));
      }
    }
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), check);
  } catch (const Json::exception& error) {
    corrupt(path, fmt::format("header is not JSON: {}", error.what()));
  }
}

/// A JSON integer in [0, 2^63).
std::optional<int64_t> as_count(const Json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  const auto number = value.get<uint64_t>();
  if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
  return static_cast<int64_t>(number);
}

struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  const std::string* name = nullptr;
};

/// Fills dtype and shape of `entry`; returns where the header says the data is.
Range read_entry(const std::string& path, const std::string& name, const Json& json,
                 SafetensorsEntry& entry) {
  const auto broken = [&](std::string_view what) {
    corrupt(path, fmt::format("tensor `{}`: {}", name, what));
  };
  if (!json.is_object()) broken("not an object");
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!json.contains(key)) broken(fmt::format("no `{}`", key));
  }
  const Json& dtype = json["dtype"];
  const Json& shape = json["shape"];
  const Json& offsets = json["data_offsets"];

  if (!dtype.is_string()) broken("`dtype` is not a string");
  entry.dtype = dtype.get<std::string>();
  const size_t element_bytes = dtype_bytes(entry.dtype);
  if (element_bytes == 0) broken(fmt::format("unknown dtype `{}`", entry.dtype));

  if (!shape.is_array()) broken("`shape` is not a list");
  for (const Json& extent : shape) {
    const std::optional<int64_t> value = as_count(extent);
    if (!value) broken("an extent in `shape` is not a non-negative integer");
    entry.shape.push_back(*value);
  }
  const std::optional<int64_t> bytes = tensor_bytes(entry.shape, element_bytes);
  if (!bytes) broken("a shape too large to exist");

  if (!offsets.is_array() || offsets.size() != 2) broken("`data_offsets` is not a pair");
  const std::optional<int64_t> begin = as_count(offsets[0]);
  const std::optional<int64_t> end = as_count(offsets[1]);
  if (!begin || !end || *begin > *end)
    broken("`data_offsets` is not an ascending pair of integers");
  if (*end - *begin != *bytes) {
    broken(fmt::format("dtype and shape need {} bytes, `data_offsets` give {}", *bytes,
                       *end - *begin));
  }
  return {*begin, *end, &name};
}

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <class T, class Out, class Convert>
std::vector<Out> convert_all(std::span<const std::byte> bytes, Convert convert) {
  std::vector<Out> values(bytes.size() / sizeof(T));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = convert(load<T>(bytes.data() + i * sizeof(T)));
  }
  return values;
}

/// Integer types only; nullopt for any other. `convert` sees the stored type.
template <class Out, class Convert>
std::optional<std::vector<Out>> convert_integers(std::string_view dtype,
                                                 std::span<const std::byte> bytes,
                                                 Convert convert) {
  if (dtype == "BOOL" || dtype == "U8") return convert_all<uint8_t, Out>(bytes, convert);
  if (dtype == "I8") return convert_all<int8_t, Out>(bytes, convert);
  if (dtype == "I16") return convert_all<int16_t, Out>(bytes, convert);
  if (dtype == "U16") return convert_all<uint16_t, Out>(bytes, convert);
  if (dtype == "I32") return convert_all<int32_t, Out>(bytes, convert);
  if (dtype == "U32") return convert_all<uint32_t, Out>(bytes, convert);
  if (dtype == "I64") return convert_all<int64_t, Out>(bytes, convert);
  if (dtype == "U64") return convert_all<uint64_t, Out>(bytes, convert);
  return std::nullopt;
}

/// Bytes of each item. Error(kInvalidArgument) for what the format cannot hold.
std::vector<size_t> checked_bytes(const std::string& path, std::span<const SafetensorsItem> items) {
  std::vector<size_t> bytes;
  std::set<std::string_view> names;
  for (const SafetensorsItem& item : items) {
    const size_t element_bytes = dtype_bytes(item.dtype);
    const std::optional<int64_t> total = tensor_bytes(item.shape, element_bytes);
    if (element_bytes == 0 || !total || item.name == kMetadata || !names.insert(item.name).second) {
      fail(
          ErrorCode::kInvalidArgument,
          fmt::format("{}: tensor `{}` has an unknown dtype, an impossible shape or a name already "
                      "taken (dtype {}, {} dimensions)",
                      path, item.name, item.dtype, item.shape.size()));
    }
    bytes.push_back(static_cast<size_t>(*total));
  }
  return bytes;
}

}  // namespace

int64_t SafetensorsEntry::elements() const { return tensor_bytes(shape, 1).value_or(0); }

const void* SafetensorsEntry::checked_data(std::string_view expected_dtype,
                                           size_t element_bytes) const {
  SEGUE_ASSERT(dtype_bytes(expected_dtype) == element_bytes, "type and dtype differ in size");
  if (dtype != expected_dtype) {
    fail(ErrorCode::kCorrupt,
         fmt::format("{}: dtype is {}, expected {}", origin, dtype, expected_dtype));
  }
  if (reinterpret_cast<uintptr_t>(bytes.data()) % element_bytes != 0) {
    fail(ErrorCode::kUnsupported,
         fmt::format("{}: data is not aligned to {} bytes; write the file again with Segue or with "
                     "the safetensors library",
                     origin, element_bytes));
  }
  return bytes.data();
}

std::vector<double> SafetensorsEntry::to_doubles() const {
  const auto plain = [](auto value) { return static_cast<double>(value); };
  const auto half = [](auto value) { return static_cast<double>(static_cast<float>(value)); };
  if (dtype == "F64") return convert_all<double, double>(bytes, plain);
  if (dtype == "F32") return convert_all<float, double>(bytes, plain);
  if (dtype == "F16") return convert_all<f16, double>(bytes, half);
  if (dtype == "BF16") return convert_all<bf16, double>(bytes, half);
  if (auto values = convert_integers<double>(dtype, bytes, plain)) return *std::move(values);
  fail(ErrorCode::kUnsupported, fmt::format("{}: {} cannot be read as doubles", origin, dtype));
}

std::vector<int64_t> SafetensorsEntry::to_ints() const {
  auto values = convert_integers<int64_t>(dtype, bytes, [this](auto value) {
    if (!std::in_range<int64_t>(value)) {
      fail(ErrorCode::kOutOfRange, fmt::format("{}: {} does not fit into int64", origin, value));
    }
    return static_cast<int64_t>(value);
  });
  if (values) return *std::move(values);
  fail(ErrorCode::kUnsupported, fmt::format("{}: {} cannot be read as integers", origin, dtype));
}

SafetensorsFile::SafetensorsFile(const std::string& path)
    : SafetensorsFile(std::make_unique<MappedFile>(path), path) {}

SafetensorsFile::SafetensorsFile(std::unique_ptr<MappedFile> file, const std::string& path)
    : SafetensorsFile(file->bytes(), path) {
  file_ = std::move(file);
}

SafetensorsFile::SafetensorsFile(std::span<const std::byte> all, const std::string& path)
    : path_(path) {
  if (all.size() < 8) corrupt(path, "shorter than its header length field");
  const auto header_bytes = load<uint64_t>(all.data());
  if (header_bytes > kMaxHeaderBytes) {
    corrupt(path, fmt::format("header of {} bytes; at most {} are allowed", header_bytes,
                              kMaxHeaderBytes));
  }
  if (header_bytes > all.size() - 8) {
    corrupt(path, fmt::format("header of {} bytes in a file of {}", header_bytes, all.size()));
  }
  const std::string_view text(reinterpret_cast<const char*>(all.data()) + 8, header_bytes);
  if (!text.starts_with('{')) corrupt(path, "header does not start with `{`");
  const Json header = parse_header(path, text);
  if (!header.is_object()) corrupt(path, "header is not an object");

  const std::span<const std::byte> data = all.subspan(8 + header_bytes);
  std::vector<Range> ranges;
  for (const auto& [name, json] : header.items()) {
    if (name == kMetadata) {
      if (!json.is_object()) corrupt(path, "`__metadata__` is not an object");
      for (const auto& [key, value] : json.items()) {
        if (!value.is_string()) corrupt(path, fmt::format("metadata `{}` is not a string", key));
        metadata_[key] = value.get<std::string>();
      }
      continue;
    }
    SafetensorsEntry entry;
    entry.origin = fmt::format("{}: tensor `{}`", path, name);
    const Range range = read_entry(path, name, json, entry);
    if (range.end > static_cast<int64_t>(data.size())) {
      corrupt(path, fmt::format("tensor `{}` ends at byte {} of {}", name, range.end, data.size()));
    }
    entry.bytes = data.subspan(static_cast<size_t>(range.begin),
                               static_cast<size_t>(range.end - range.begin));
    const auto [place, inserted] = tensors_.emplace(name, std::move(entry));
    ranges.push_back({range.begin, range.end, &place->first});
  }

  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  int64_t covered = 0;
  for (const Range& range : ranges) {
    if (range.begin != covered) {
      corrupt(path, fmt::format("tensor `{}` begins at byte {}, {} the one before it", *range.name,
                                range.begin, range.begin > covered ? "with a gap to" : "inside"));
    }
    covered = range.end;
  }
  if (covered != static_cast<int64_t>(data.size())) {
    corrupt(path, fmt::format("{} bytes of data, but the tensors need {}", data.size(), covered));
  }
}

SafetensorsFile::~SafetensorsFile() = default;
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto place = tensors_.find(name);
  return place == tensors_.end() ? nullptr : &place->second;
}

const SafetensorsEntry& SafetensorsFile::get(std::string_view name) const {
  if (const SafetensorsEntry* entry = find(name)) return *entry;
  std::vector<std::string> names;
  for (const auto& [known, entry] : tensors_) names.push_back(known);
  const std::string nearest = nearest_name(name, names);
  fail(ErrorCode::kNotFound,
       fmt::format("{}: no tensor `{}` among {}{}", path_, name, names.size(),
                   nearest.empty() ? "" : fmt::format("; did you mean `{}`?", nearest)));
}

SafetensorsLayout safetensors_layout(
    const std::string& path, std::span<const SafetensorsItem> items,
    const std::map<std::string, std::string, std::less<>>& metadata) {
  const std::vector<size_t> bytes = checked_bytes(path, items);
  SafetensorsLayout layout;
  layout.data_order.resize(items.size());
  std::iota(layout.data_order.begin(), layout.data_order.end(), size_t{0});
  std::stable_sort(layout.data_order.begin(), layout.data_order.end(),
                   [&items](size_t a, size_t b) {
                     return dtype_bytes(items[a].dtype) > dtype_bytes(items[b].dtype);
                   });
  std::vector<size_t> begin(items.size());
  size_t position = 0;
  for (const size_t i : layout.data_order) {
    begin[i] = position;
    position += bytes[i];
  }

  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[std::string(kMetadata)] = metadata;
  for (size_t i = 0; i < items.size(); ++i) {
    header[items[i].name] = {{"dtype", items[i].dtype},
                             {"shape", items[i].shape},
                             {"data_offsets", {begin[i], begin[i] + bytes[i]}}};
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception& error) {  // a name that is not UTF-8
    fail(ErrorCode::kInvalidArgument, fmt::format("{}: {}", path, error.what()));
  }
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t header_bytes = text.size();
  layout.header.assign(reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes));
  layout.header += text;
  return layout;
}

void write_safetensors(const std::string& path, std::span<const SafetensorsItem> items,
                       const std::map<std::string, std::string, std::less<>>& metadata) {
  const std::vector<size_t> bytes = checked_bytes(path, items);
  const SafetensorsLayout layout = safetensors_layout(path, items, metadata);
  AtomicFile file(path);
  file.write(layout.header);
  for (const size_t i : layout.data_order) {
    SEGUE_ASSERT(items[i].data != nullptr || bytes[i] == 0, "a tensor without data");
    file.write(items[i].data, bytes[i]);
  }
  file.commit();
}

}  // namespace segue::base
