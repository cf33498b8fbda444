#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"
#include "base/stage.h"
#include "publish/chain.h"
#include "publish/publish.h"
#include "publish/table_file.h"

namespace segue::publish {
namespace {

namespace fs = std::filesystem;

/// Beside versions, the link, the lock and what is unfinished.
std::vector<std::string> extra_problems(const std::string& folder,
                                        std::span<const int64_t> numbers) {
  std::set<std::string> known = {kCurrent, kLock};
  for (const int64_t number : numbers) known.insert(version_name(number));
  std::vector<std::string> problems;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (known.contains(name) || name.starts_with(kTemporaryPrefix)) continue;
    problems.push_back(
        fmt::format("{}/{}: is no version; move it out of the folder", folder, name));
  }
  std::ranges::sort(problems);
  return problems;
}

/// No killed publisher is forgiven here: what is not finished is told.
std::string unfinished_problem(const std::string& folder, int64_t newest) {
  try {
    const std::optional<int64_t> current = current_version(folder);
    if (current == newest) return {};
    return fmt::format("{}/{} points to {} instead of {}", folder, kCurrent,
                       current ? version_name(*current) : "nothing", version_name(newest));
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

Verified verify(const std::string& folder, const data::VectorFiles* parquet) {
  const base::Stage stage("verify versions");
  const std::vector<int64_t> numbers = list_versions(folder);
  if (numbers.empty()) {
    fail(ErrorCode::kNotFound, folder + ": no versions; give the folder that `--to` named");
  }
  Versions versions = read_versions(folder, numbers);
  Verified verified;
  verified.versions = std::ssize(numbers);
  verified.problems = std::move(versions.problems);
  const auto add = [&](const std::vector<std::string>& problems) {
    verified.problems.insert(verified.problems.end(), problems.begin(), problems.end());
  };
  // A chain is replayed as far as its files are what they were.
  Chain chain;
  const auto replay_chain = [&] {
    for (size_t t = 0; !chain.empty() && t < chain.front().tables.size(); ++t) {
      add(replay(folder, chain, t, parquet, [](int64_t, const Row&) {}));
    }
    chain.clear();
  };
  for (auto& [number, manifest] : versions.manifests) {
    require_format(manifest.format, parquet);
    verified.bytes += manifest.bytes();
    const std::vector<std::string> problems = file_problems(folder, manifest);
    add(problems);
    const bool follows =
        !chain.empty() && !manifest.is_base() && link_problem(chain.back(), manifest).empty();
    if (!follows) replay_chain();
    if (problems.empty() && (follows || manifest.is_base())) chain.push_back(std::move(manifest));
  }
  replay_chain();
  add({unfinished_problem(folder, numbers.back())});
  add(extra_problems(folder, numbers));
  std::erase(verified.problems, "");
  return verified;
}

}  // namespace segue::publish
