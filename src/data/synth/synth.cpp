#include "data/synth/synth.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "base/rng.h"
#include "data/synth/synth_catalogue.h"
#include "data/synth/synth_draw.h"
#include "data/synth/synth_user.h"

namespace segue::data {
namespace {

constexpr int64_t kIdGroup = 16;           // users that share 17 ids
constexpr int64_t kBlockEvents = 1 << 20;  // generated before they are handed on
constexpr int64_t kLargestNumber = int64_t{1} << 31;

}  // namespace

void SynthConfig::validate() const {
  const auto check = [](const char* what, int64_t value, int64_t most) {
    if (value >= 1 && value <= most) return;
    fail(ErrorCode::kInvalidArgument,
         fmt::format("synth: {} must be between 1 and {}, not {}", what, most, value));
  };
  check("users", users, kLargestNumber);
  check("items", items, kLargestNumber);
  check("days", days, 20000);  // timestamps fit 32 bits
  check("events_per_user", events_per_user, 1'000'000);
}

SynthLog::SynthLog(const SynthConfig& config) : config_(config) {
  config_.validate();
  catalogue_ = std::make_unique<SynthCatalogue>(config_);
}

SynthLog::~SynthLog() = default;

int64_t SynthLog::user_id(int64_t user) const {
  const int64_t group = user / kIdGroup, place = user % kIdGroup;
  const Draw d = draw(kUserIdDraw, base::splitmix64(config_.seed), static_cast<uint64_t>(group), 0);
  const auto unused = static_cast<int64_t>(scale_to(d.a, kIdGroup + 1));
  return group * (kIdGroup + 1) + place + (place >= unused ? 1 : 0);
}

void SynthLog::generate(int64_t user, UserLog& log) const {
  SynthUser(*catalogue_, config_, user, user_id(user)).generate(log);
}

int64_t SynthLog::block_users() const {
  return std::clamp<int64_t>(kBlockEvents / config_.events_per_user, 1, 4096);
}

void SynthLog::generate_block(int64_t first, std::vector<UserLog>& logs) const {
  logs.resize(static_cast<size_t>(std::min(block_users(), config_.users - first)));
  base::parallel_for(static_cast<int64_t>(logs.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) generate(first + i, logs[static_cast<size_t>(i)]);
  });
}

AttributeRows SynthLog::artist_rows() const { return catalogue_->artist_rows(); }
AttributeRows SynthLog::album_rows() const { return catalogue_->album_rows(); }

}  // namespace segue::data
