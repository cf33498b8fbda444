#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file_io.h"
#include "base/stage.h"
#include "base/version_generated.h"
#include "publish/chain.h"
#include "publish/publish.h"
#include "publish/table_file.h"
#include "publish/version_writer.h"

namespace segue::publish {
namespace {

constexpr size_t kCopyBytes = 1 << 20;

base::FileRecord copy_dense(const std::string& from, const std::string& to) {
  const base::InputFile file(from, kDenseFile);
  base::HashedFile copy(fmt::format("{}/{}", to, kDenseFile));
  std::vector<char> some(kCopyBytes);
  while (const size_t bytes = file.read_at(copy.size(), some.data(), some.size())) {
    copy.write(some.data(), bytes);
  }
  base::FileRecord record = copy.finish();
  record.name = kDenseFile;
  return record;
}

}  // namespace

VersionManifest apply(const std::string& from, const std::string& to, int64_t number,
                      const data::VectorFiles* parquet) {
  const base::Stage stage("apply versions");
  const std::vector<int64_t> numbers = list_versions(from);
  if (numbers.empty()) {
    fail(ErrorCode::kNotFound, from + ": no versions; give the folder that `--to` named");
  }
  const std::string problem = number == 0 ? current_problem(from, numbers.back()) : "";
  if (!problem.empty()) fail(ErrorCode::kCorrupt, problem);
  const Chain chain = open_chain(from, number == 0 ? numbers.back() : number);
  require_format(chain.front().format, parquet);
  const OwnedFolder owned(to);
  if (!list_versions(to).empty() || current_version(to)) {
    fail(ErrorCode::kInvalidArgument,
         fmt::format("{} holds versions already; choose an empty folder with --to", to));
  }
  VersionManifest made = chain.back();
  made.number = made.base = 1;
  made.previous = 0;
  made.previous_checksum = 0;
  made.segue_version = SEGUE_VERSION;
  VersionWriter writer(owned, to, made.number);
  made.files = {copy_dense(version_path(from, chain.back().number), writer.path())};
  for (size_t t = 0; t < made.tables.size(); ++t) {
    PublishedTable& table = made.tables[t];
    RowCodec codec(made.dtype, table.dim);
    std::vector<int64_t> ids;
    const auto feed = [&](const VisitRow& visit) {
      require_none(from, replay(from, chain, t, parquet, visit));
    };
    feed([&](int64_t id, const Row&) { ids.push_back(id); });
    WrittenTable written =
        write_table_file(writer.path(), table.name, made.format, codec, ids, {}, feed, parquet);
    table.in_file = table.rows;
    table.removed = 0;
    std::ranges::move(written.files, std::back_inserter(made.files));
  }
  writer.commit(made);
  return made;
}

}  // namespace segue::publish
