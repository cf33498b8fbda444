#include "data/store/verified_files.h"

#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/sealed_json.h"
#include "data/store/index_file.h"

namespace segue::data {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "segue verified files";
constexpr int64_t kFormatVersion = 1;

/// The same after a restart; machines that share a folder differ in it.
std::string machine() {
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  std::string id = host;
  const std::string path = "/etc/machine-id";
  if (base::exists(path)) id += "/" + base::read_file(path);
  return base::hex64(base::xxh64(id));
}

Json to_json(const base::FileIdentity& i) {
  return {{"bytes", i.bytes},
          {"modified_ns", i.modified_ns},
          {"changed_ns", i.changed_ns},
          {"device", i.device},
          {"inode", i.inode}};
}

base::FileIdentity identity_from(const Json& j) {
  return {.bytes = j.at("bytes"),
          .modified_ns = j.at("modified_ns"),
          .changed_ns = j.at("changed_ns"),
          .device = j.at("device"),
          .inode = j.at("inode")};
}

}  // namespace

VerifiedFiles::VerifiedFiles(std::string folder, uint64_t manifest)
    : folder_(std::move(folder)),
      path_(fmt::format("{}/verified-{}.json", folder_, machine())),
      manifest_(manifest) {}

std::string VerifiedFiles::to_json(const Files& files) const {
  Json j;
  j["format"] = kFormat;
  j["version"] = kFormatVersion;
  j["manifest"] = base::hex64(manifest_);
  Json& list = j["files"] = Json::object();
  for (const auto& [name, identity] : files) list[name] = data::to_json(identity);
  j["checksum"] = base::hex64(base::xxh64(j.dump()));
  return j.dump(2) + "\n";
}

VerifiedFiles::Files VerifiedFiles::saved() const {
  if (!base::exists(path_)) return {};
  try {
    const std::string text = base::read_regular_file(path_);
    const Json j = Json::parse(text);
    Files files;
    for (const auto& [name, identity] : j.at("files").items()) {
      files[name] = identity_from(identity);
    }
    // Equal to what would be written: whole, of this version, and of this manifest.
    if (to_json(files) == text) return files;
  } catch (const Json::exception&) {
    // as if it were not there
  } catch (const Error&) {
    // likewise
  }
  return {};
}

void VerifiedFiles::read() {
  Files files = saved();
  const std::lock_guard lock(mutex_);
  files_ = std::move(files);
}

bool VerifiedFiles::contains(const CheckedFile& file) const {
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(file.name);
  return found != files_.end() && found->second == file.identity;
}

void VerifiedFiles::add(const CheckedFile& file) {
  const std::lock_guard lock(mutex_);
  files_[file.name] = file.identity;
}

void VerifiedFiles::save() const {
  const IndexLock lock(folder_);
  Files all = saved();
  {
    const std::lock_guard own(mutex_);
    for (const auto& [name, identity] : files_) all[name] = identity;
  }
  base::write_file(path_, to_json(all));
}

}  // namespace segue::data
