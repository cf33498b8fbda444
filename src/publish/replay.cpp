// One table of a chain, put together again.

#include <algorithm>
#include <functional>
#include <memory>
#include <queue>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "publish/chain.h"
#include "publish/table_file.h"

namespace segue::publish {
namespace {

/// What one version says, from id to id.
class Cursor {
 public:
  Cursor(std::unique_ptr<TableFile> file, std::string place, const RowCodec& codec)
      : file_(std::move(file)), place_(std::move(place)), codec_(&codec) {
    if (!file_->next(block_)) block_ = {};
    settle();
  }

  bool done() const { return done_; }
  int64_t id() const { return id_; }
  bool removes() const { return removes_; }
  Row row() const {
    const auto offset = at_ * static_cast<size_t>(codec_->weight_bytes());
    return {block_.numbers + offset, block_.scales != nullptr ? block_.scales[at_] : 0};
  }
  void advance() {
    if (removes_) {
      ++removed_at_;
    } else if (++at_ == block_.ids.size()) {
      at_ = 0;
      if (!file_->next(block_)) block_ = {};
    }
    const int64_t before = id_;
    settle();
    if (!done_ && id_ <= before) {
      fail(ErrorCode::kCorrupt,
           fmt::format("{}: ids are not ascending: {} follows {}", place_, id_, before));
    }
  }

 private:
  /// The smaller of the next row and the next removed id.
  void settle() {
    const bool has_row = at_ < block_.ids.size();
    const std::span<const int64_t> removed = file_->removed();
    const bool has_removed = removed_at_ < removed.size();
    done_ = !has_row && !has_removed;
    if (done_) return;
    removes_ = !has_row || (has_removed && removed[removed_at_] < block_.ids[at_]);
    id_ = removes_ ? removed[removed_at_] : block_.ids[at_];
  }

  std::unique_ptr<TableFile> file_;
  std::string place_;
  const RowCodec* codec_;
  data::VectorBlock block_;
  size_t at_ = 0, removed_at_ = 0;
  int64_t id_ = 0;
  bool removes_ = false, done_ = false;
};

/// What a version changes about its table.
struct Sum {
  int64_t rows = 0;
  uint64_t content = 0;
  int64_t absent = 0, first_absent = 0;  // ids removed that were not there
};

class Replay {
 public:
  Replay(const std::string& folder, std::span<const VersionManifest> chain, size_t table,
         const data::VectorFiles* parquet)
      : folder_(folder),
        chain_(chain),
        table_(table),
        codec_(chain.front().dtype, chain.front().tables[table].dim),
        sums_(chain.size()) {
    for (size_t v = 0; v < chain.size(); ++v) {
      const std::string path = version_path(folder, chain[v].number);
      cursors_.emplace_back(open_table_file(path, chain[v], chain[v].tables[table], parquet),
                            place(v), codec_);
      push(v);
    }
  }

  void run(const VisitRow& visit) {
    std::vector<size_t> met;  // versions with this id, oldest first
    while (!next_.empty()) {
      const int64_t id = next_.top().first;
      met.clear();
      while (!next_.empty() && next_.top().first == id) {
        met.push_back(next_.top().second);
        next_.pop();
      }
      apply(id, met, visit);
      for (const size_t v : met) {
        cursors_[v].advance();
        push(v);
      }
    }
  }

  std::vector<std::string> problems() const {
    std::vector<std::string> found;
    int64_t rows = 0;
    uint64_t content = 0;
    for (size_t v = 0; v < chain_.size(); ++v) {
      rows += sums_[v].rows;
      content += sums_[v].content;
      const PublishedTable& wanted = chain_[v].tables[table_];
      if (sums_[v].absent > 0) {
        found.push_back(fmt::format("{}: {} removed ids were not there, the first is {}", place(v),
                                    sums_[v].absent, sums_[v].first_absent));
      }
      if (rows != wanted.rows) {
        found.push_back(fmt::format("{}: {} rows instead of {}", place(v), rows, wanted.rows));
      } else if (content != wanted.content) {
        found.push_back(fmt::format("{}: the rows are not those that were published", place(v)));
      }
    }
    return found;
  }

 private:
  std::string place(size_t v) const {
    return fmt::format("{}: table `{}`", version_path(folder_, chain_[v].number),
                       chain_[v].tables[table_].name);
  }
  void push(size_t v) {
    if (!cursors_[v].done()) next_.emplace(cursors_[v].id(), v);
  }

  void apply(int64_t id, std::span<const size_t> met, const VisitRow& visit) {
    const Cursor* last = nullptr;  // who has the row, if somebody has
    uint64_t digest = 0;
    for (const size_t v : met) {
      Sum& sum = sums_[v];
      sum.content -= digest;
      digest = 0;
      if (cursors_[v].removes()) {
        if (last == nullptr && sum.absent++ == 0) sum.first_absent = id;
        if (last != nullptr) --sum.rows;
        last = nullptr;
        continue;
      }
      if (last == nullptr) ++sum.rows;
      last = &cursors_[v];
      digest = codec_.digest(id, last->row());
      sum.content += digest;
    }
    if (last != nullptr) visit(id, last->row());
  }

  const std::string& folder_;
  std::span<const VersionManifest> chain_;
  size_t table_;
  RowCodec codec_;
  std::vector<Cursor> cursors_;
  std::vector<Sum> sums_;
  using Next = std::pair<int64_t, size_t>;  // id, version
  std::priority_queue<Next, std::vector<Next>, std::greater<>> next_;
};

}  // namespace

std::vector<std::string> replay(const std::string& folder, std::span<const VersionManifest> chain,
                                size_t table, const data::VectorFiles* parquet,
                                const VisitRow& visit) {
  try {
    Replay replay(folder, chain, table, parquet);
    replay.run(visit);
    return replay.problems();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCorrupt) throw;
    return {error.what()};
  }
}

}  // namespace segue::publish
