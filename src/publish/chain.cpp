#include "publish/chain.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"
#include "base/safetensors.h"

namespace segue::publish {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kVersionPrefix = "version-";

std::optional<int64_t> number_of(std::string_view name) {
  if (!name.starts_with(kVersionPrefix)) return std::nullopt;
  const std::string_view digits = name.substr(kVersionPrefix.size());
  int64_t number = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  // "version-7" and "version-00000x" are not ours.
  if (number < 1 || version_name(number) != name) return std::nullopt;
  return number;
}

/// Empty: nothing is wrong with the file.
std::string file_problem(const std::string& path, const base::FileRecord& wanted) {
  try {
    const base::InputFile file(path, wanted.name);
    if (file.size() != wanted.bytes) {
      return fmt::format("{} has {} bytes instead of {}", wanted.name, file.size(), wanted.bytes);
    }
    // Read, not mapped: a disk that fails shows as an error here and as a signal there.
    if (base::record_of(file).xxh64 != wanted.xxh64) {
      return fmt::format("{} was changed: its checksum is wrong", wanted.name);
    }
    return {};
  } catch (const Error& error) {
    return error.code() == ErrorCode::kNotFound ? wanted.name + " is missing" : error.what();
  }
}

/// The dense weights say themselves of which step they are.
std::string step_problem(const std::string& path, const VersionManifest& manifest) {
  try {
    const base::SafetensorsFile dense(path + "/" + kDenseFile);
    const auto found = dense.metadata().find("step");
    if (found != dense.metadata().end() && found->second == std::to_string(manifest.step)) {
      return {};
    }
    return fmt::format("{} is not that of step {}", kDenseFile, manifest.step);
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

std::string version_name(int64_t number) { return fmt::format("{}{:06}", kVersionPrefix, number); }

std::string version_path(const std::string& folder, int64_t number) {
  return fmt::format("{}/{}", folder, version_name(number));
}

std::vector<int64_t> list_versions(const std::string& folder) {
  std::vector<int64_t> numbers;
  std::error_code error;
  if (!base::exists(folder)) return numbers;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (const auto number = number_of(it->path().filename().string())) numbers.push_back(*number);
  }
  if (error) fail(ErrorCode::kIo, fmt::format("{}: cannot be read: {}", folder, error.message()));
  std::ranges::sort(numbers);
  return numbers;
}

std::optional<int64_t> current_version(const std::string& folder) {
  const std::string link = fmt::format("{}/{}", folder, kCurrent);
  std::error_code error;
  if (fs::symlink_status(link, error).type() == fs::file_type::not_found) return std::nullopt;
  if (fs::is_symlink(link, error)) {
    const auto number = number_of(fs::read_symlink(link, error).string());
    if (number) return number;
  }
  fail(ErrorCode::kCorrupt, fmt::format("{} is no link to a version beside it; remove it", link));
}

std::string current_problem(const std::string& folder, int64_t newest) {
  const std::optional<int64_t> current = current_version(folder);
  if (current == newest || (current ? *current == newest - 1 : list_versions(folder).size() == 1)) {
    return {};
  }
  return fmt::format("{}/{} points to {}, the newest version is {}; put it right by hand", folder,
                     kCurrent, current ? version_name(*current) : "nothing", version_name(newest));
}

VersionManifest read_version(const std::string& folder, int64_t number) {
  const std::string path = version_path(folder, number);
  VersionManifest manifest = VersionManifest::read(path);
  if (manifest.number != number) {
    fail(ErrorCode::kCorrupt, fmt::format("{}: holds {}", path, version_name(manifest.number)));
  }
  return manifest;
}

Versions read_versions(const std::string& folder, std::span<const int64_t> numbers) {
  Versions found;
  const auto add = [&](int64_t number, std::string_view what) {
    found.problems.push_back(fmt::format("{}: {}", version_path(folder, number), what));
  };
  for (const int64_t number : numbers) {
    try {
      found.manifests.emplace(number, read_version(folder, number));
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kUnsupported) throw;
      found.problems.emplace_back(error.what());
    }
  }
  for (size_t i = 0; i < numbers.size(); ++i) {
    const auto after = found.manifests.find(numbers[i]);
    if (i == 0) {
      if (after != found.manifests.end() && !after->second.is_base()) {
        add(numbers[i], fmt::format("is an increment, but its base {} is not there",
                                    version_name(after->second.base)));
      }
      continue;
    }
    if (numbers[i] != numbers[i - 1] + 1) {
      add(numbers[i - 1] + 1,
          numbers[i] == numbers[i - 1] + 2
              ? "is missing"
              : fmt::format("is missing, and all before {}", version_name(numbers[i])));
      continue;
    }
    const auto before = found.manifests.find(numbers[i - 1]);
    if (before == found.manifests.end() || after == found.manifests.end()) continue;
    if (const std::string problem = link_problem(before->second, after->second); !problem.empty()) {
      add(numbers[i], problem);
    }
  }
  return found;
}

std::string link_problem(const VersionManifest& before, const VersionManifest& after) {
  if (after.previous != before.number || after.previous_checksum != before.checksum) {
    return fmt::format("was not made after {} as it is now", version_name(before.number));
  }
  if (after.is_base()) return {};
  const bool same_tables = std::ranges::equal(before.tables, after.tables,
                                              [](const PublishedTable& a, const PublishedTable& b) {
                                                return a.name == b.name && a.dim == b.dim;
                                              });
  if (after.base != before.base) {
    return fmt::format("counts on the base {}, {} on {}", version_name(after.base),
                       version_name(before.number), version_name(before.base));
  }
  if (after.dtype != before.dtype || after.format != before.format || !same_tables) {
    return fmt::format("has other tables, types or files than {}", version_name(before.number));
  }
  return {};
}

std::vector<std::string> file_problems(const std::string& folder, const VersionManifest& manifest) {
  const std::string path = version_path(folder, manifest.number);
  std::vector<std::string> problems;
  std::set<std::string> extra;
  std::error_code error;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    extra.insert(it->path().filename().string());
  }
  extra.erase(kVersionManifest);
  for (const base::FileRecord& file : manifest.files) {
    extra.erase(file.name);
    if (std::string problem = file_problem(path, file); !problem.empty()) {
      problems.push_back(std::move(problem));
    }
  }
  for (const std::string& name : extra) {
    problems.push_back(name + " is not in the manifest; move it out of the folder");
  }
  if (problems.empty()) problems.push_back(step_problem(path, manifest));
  std::erase(problems, "");
  for (std::string& problem : problems) problem = fmt::format("{}: {}", path, problem);
  return problems;
}

Chain open_chain(const std::string& folder, int64_t number) {
  const std::vector<int64_t> all = list_versions(folder);
  const auto last = std::ranges::find(all, number);
  if (last == all.end()) {
    fail(ErrorCode::kNotFound, fmt::format("{}: there is no {}", folder, version_name(number)));
  }
  const int64_t base = read_version(folder, number).base;
  const auto first = std::ranges::lower_bound(all, std::min(base, number));
  Versions versions = read_versions(folder, std::span(first, last + 1));
  require_none(folder, versions.problems);
  Chain chain;
  for (auto& [n, manifest] : versions.manifests) {
    const std::vector<std::string> problems = file_problems(folder, manifest);
    versions.problems.insert(versions.problems.end(), problems.begin(), problems.end());
    chain.push_back(std::move(manifest));
  }
  require_none(folder, versions.problems);
  return chain;
}

void require_none(const std::string& folder, std::span<const std::string> problems) {
  if (problems.empty()) return;
  fail(ErrorCode::kCorrupt,
       fmt::format("{}: damaged versions:\n{}", folder, fmt::join(problems, "\n")));
}

}  // namespace segue::publish
