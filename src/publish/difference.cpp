#include "publish/difference.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"

namespace segue::publish {

Difference difference_of(const std::string& folder, std::span<const VersionManifest> chain,
                         size_t table, const data::VectorFiles* parquet, CheckpointTable& rows,
                         std::optional<std::vector<int64_t>> keys) {
  const PublishedTable& published = chain.back().tables[table];
  if (published.dim != rows.codec().dim()) {
    fail(ErrorCode::kConfig,
         fmt::format("table `{}` has {} columns, in {} it has {}; start a new base with --base",
                     published.name, rows.codec().dim(), version_name(chain.back().number),
                     published.dim));
  }
  std::optional<std::vector<int64_t>> candidates;
  if (keys) candidates = rows.ids_of(*std::move(keys));
  const std::span<const int64_t> ids = rows.ids();
  RowCodec codec = rows.codec();
  Difference found;
  size_t i = 0, c = 0;
  const std::vector<std::string> problems =
      replay(folder, chain, table, parquet, [&](int64_t id, const Row& row) {
        while (i < ids.size() && ids[i] < id) found.changed.push_back(i++);
        if (i == ids.size() || ids[i] != id) {
          found.removed.push_back(id);
          found.outdated += codec.digest(id, row);
          return;
        }
        const size_t here = i++;
        if (candidates) {
          while (c < candidates->size() && (*candidates)[c] < id) ++c;
          if (c == candidates->size() || (*candidates)[c] != id) return;
        }
        if (codec.same(row, rows.row(here))) return;
        found.changed.push_back(here);
        found.outdated += codec.digest(id, row);
      });
  require_none(folder, problems);
  while (i < ids.size()) found.changed.push_back(i++);
  return found;
}

}  // namespace segue::publish
