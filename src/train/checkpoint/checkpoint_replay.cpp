#include "train/checkpoint/checkpoint_replay.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"

namespace segue::train {
namespace {

using sparse::SavedArrays;

constexpr std::string_view kByRow[] = {"weight", "state", "stamp"};

/// Where the newest values of a row are.
struct Place {
  int64_t key = 0;
  int64_t generation = 0, row = 0;
};

class Replayed final : public SavedArrays {
 public:
  Replayed(std::vector<std::unique_ptr<SavedArrays>> generations, std::string name)
      : generations_(std::move(generations)), name_(std::move(name)) {
    key_ = generations_.front()->shape("key") ? "key" : "row";
    for (size_t g = 0; g < generations_.size(); ++g) add(g);
  }

  std::optional<std::vector<int64_t>> shape(const std::string& array) const override {
    if (array == "removed") return std::nullopt;
    if (array == key_) return std::vector<int64_t>{std::ssize(rows_)};
    std::optional<std::vector<int64_t>> shape = generations_.back()->shape(array);
    if (shape && is_by_row(array)) shape->front() = std::ssize(rows_);
    return shape;
  }

  void read(const std::string& array, DType dtype, int64_t first, int64_t count,
            void* to) const override {
    if (array != key_ && !is_by_row(array)) {
      generations_.back()->read(array, dtype, first, count, to);
      return;
    }
    const auto some =
        std::span(rows_).subspan(static_cast<size_t>(first), static_cast<size_t>(count));
    if (array == key_) {
      SEGUE_ASSERT(dtype == DType::kI64, "keys are whole numbers");
      std::ranges::transform(some, static_cast<int64_t*>(to), &Place::key);
      return;
    }
    const std::vector<int64_t> shape = *generations_.back()->shape(array);
    const int64_t row_bytes =
        std::accumulate(shape.begin() + 1, shape.end(), size_of(dtype), std::multiplies<>());
    // Rows that lie together are read together.
    for (size_t i = 0; i < some.size();) {
      size_t n = 1;
      while (i + n < some.size() && some[i + n].generation == some[i].generation &&
             some[i + n].row == some[i].row + static_cast<int64_t>(n)) {
        ++n;
      }
      generations_[static_cast<size_t>(some[i].generation)]->read(
          array, dtype, some[i].row, static_cast<int64_t>(n),
          static_cast<std::byte*>(to) + static_cast<int64_t>(i) * row_bytes);
      i += n;
    }
  }

 private:
  static bool is_by_row(std::string_view array) {
    return std::ranges::find(kByRow, array) != std::end(kByRow);
  }
  [[noreturn]] void refuse(size_t generation, const std::string& what) const {
    fail(ErrorCode::kCorrupt, fmt::format("{} of increment {} {}", name_, generation, what));
  }

  void add(size_t g) {
    const SavedArrays& saved = *generations_[g];
    check_arrays(g);
    const int64_t count = saved.shape("weight")->front();
    std::vector<int64_t> keys = sparse::saved_integers(saved, key_, 1);
    if (g == 0 && !saved.shape(key_)) {  // all rows of a static table, in their order
      keys.resize(static_cast<size_t>(count));
      std::iota(keys.begin(), keys.end(), int64_t{0});
    }
    if (std::ssize(keys) != count) {
      refuse(g, fmt::format("has {} rows and {} numbers of rows", count, keys.size()));
    }
    std::vector<Place> now;
    for (int64_t i = 0; i < count; ++i) {
      now.push_back({keys[static_cast<size_t>(i)], static_cast<int64_t>(g), i});
    }
    std::ranges::sort(now, {}, &Place::key);
    if (std::ranges::adjacent_find(now, {}, &Place::key) != now.end()) {
      refuse(g, "has a row twice");
    }
    std::vector<int64_t> removed = sparse::saved_integers(saved, "removed", 1);
    std::ranges::sort(removed);
    merge(g, now, removed);
  }

  void check_arrays(size_t g) const {
    const std::optional<std::vector<int64_t>> first = generations_.front()->shape("weight");
    if (!first) refuse(0, "has no weights");
    for (const std::string_view name : kByRow) {
      const std::string array(name);
      const auto now = generations_[g]->shape(array), before = generations_.front()->shape(array);
      const bool alike = now.has_value() == before.has_value() &&
                         (!now || (!now->empty() && now->size() == before->size() &&
                                   std::equal(now->begin() + 1, now->end(), before->begin() + 1)));
      const auto rows = generations_[g]->shape("weight");
      if (!alike || !rows || (now && now->front() != rows->front())) {
        refuse(g, fmt::format("has another `{}` than the table", array));
      }
    }
    if (g > 0 && !generations_[g]->shape(key_)) refuse(g, fmt::format("has no `{}`", key_));
  }

  /// Rows of the same key are replaced, removed ones go.
  void merge(size_t g, const std::vector<Place>& now, const std::vector<int64_t>& removed) {
    std::vector<Place> merged;
    merged.reserve(rows_.size() + now.size());
    std::ranges::set_union(now, rows_, std::back_inserter(merged), {}, &Place::key, &Place::key);
    auto next = removed.begin();
    std::erase_if(merged, [&](const Place& place) {
      if (next == removed.end() || *next != place.key) return false;
      // What was removed is not among the new ones.
      if (place.generation == static_cast<int64_t>(g)) return false;
      ++next;
      return true;
    });
    if (next != removed.end()) {
      refuse(g, fmt::format("removes key {}, which is not there", *next));
    }
    rows_ = std::move(merged);
  }

  std::vector<std::unique_ptr<SavedArrays>> generations_;
  std::string name_, key_;
  std::vector<Place> rows_;  // by key
};

}  // namespace

std::unique_ptr<SavedArrays> replay(std::vector<std::unique_ptr<SavedArrays>> generations,
                                    const std::string& name) {
  return std::make_unique<Replayed>(std::move(generations), name);
}

}  // namespace segue::train
