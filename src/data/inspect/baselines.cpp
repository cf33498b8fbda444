#include "data/inspect/baselines.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <unordered_map>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"
#include "base/npy.h"
#include "base/parallel.h"
#include "data/numbers/tally.h"
#include "data/store/event_log.h"
#include "data/synth/synth_output.h"

namespace segue::data {
namespace {

constexpr double kItemPrior = 10, kUserPrior = 5, kAttributePrior = 2;

size_t label_pool(const SampleSchema& schema) {
  const auto found = std::ranges::find(schema.pools, schema.label_pool, &PoolConfig::name);
  if (found == schema.pools.end()) {
    fail(ErrorCode::kUnsupported, "baselines need a schema with one label pool");
  }
  return static_cast<size_t>(found - schema.pools.begin());
}

/// Whether the outcome of an event is known at a later one: at once, or when labels that wait for
/// later events have waited.
bool is_known(const EventLog& log, int64_t event, int64_t later) {
  const SampleSchema& schema = log.piece(0).schema();
  const int64_t wait = schema.pools[label_pool(schema)].known_after_seconds;
  return wait == 0 ||
         log.at(event, &EventStore::timestamps) + wait < log.at(later, &EventStore::timestamps);
}

/// Fills user and user_attribute for predictions [first, last), which belong to one user.
void predict_user(const EventStore& store, const EventLog& log, size_t first, size_t last,
                  double prior, Predictions& out) {
  const bool with_attribute = !out.user_attribute.empty();
  Tally user;
  std::unordered_map<int32_t, Tally> by_attribute;
  const auto tally_of = [&](size_t i) -> Tally& {
    const int64_t item = log.at(out.positions[i], &EventStore::items);
    const auto clipped = static_cast<size_t>(std::clamp<int64_t>(item, 0, store.num_items() - 1));
    return by_attribute[store.attribute_map(0)[clipped]];
  };
  size_t known = first;  // outcomes before it
  for (size_t i = first; i < last; ++i) {
    for (; known < i && is_known(log, out.positions[known], out.positions[i]); ++known) {
      user.add(out.labels[known] != 0);
      if (with_attribute) tally_of(known).add(out.labels[known] != 0);
    }
    const double share = user.share(prior, kUserPrior);
    out.user[i] = static_cast<float>(share);
    if (!with_attribute) continue;
    out.user_attribute[i] = static_cast<float>(tally_of(i).share(share, kAttributePrior));
  }
}

void predict_items(const EventLog& log, double prior, Predictions& out) {
  std::vector<uint32_t> order(out.positions.size());
  std::iota(order.begin(), order.end(), 0u);
  const auto time = [&](uint32_t i) { return log.at(out.positions[i], &EventStore::timestamps); };
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return time(a) < time(b); });
  std::unordered_map<int64_t, Tally> by_item;
  const auto tally_of = [&](uint32_t i) -> Tally& {
    return by_item[log.at(out.positions[i], &EventStore::items)];
  };
  auto known = order.begin();
  for (auto i = order.begin(); i != order.end(); ++i) {
    for (; known < i && is_known(log, out.positions[*known], out.positions[*i]); ++known) {
      tally_of(*known).add(out.labels[*known] != 0);
    }
    out.item[*i] = static_cast<float>(tally_of(*i).share(prior, kItemPrior));
  }
}

std::vector<float> stored_truth(const EventStore& store) {
  const std::string path = store.folder() + "/" + kTruthFile;
  if (!base::exists(path)) return {};
  const base::NpyFile file(path);
  if (file.elements() != store.num_events()) {
    fail(ErrorCode::kCorrupt, fmt::format("{} has {} elements, but the store has {} events", path,
                                          file.elements(), store.num_events()));
  }
  const std::span<const float> values = file.as<float>("<f4");
  return {values.begin(), values.end()};
}

/// Both are in order of user and time, and listens of a user have different times.
std::vector<float> matched_truth(const EventStore& store, const std::string& raw_folder) {
  const std::string folder = raw_folder + "/" + kTruthFolder;
  const base::NpyFile user_file(folder + "/uid.npy"), time_file(folder + "/timestamp.npy"),
      probability_file(folder + "/listen_probability.npy");
  const auto users = user_file.as<uint32_t>("<u4");
  const auto times = time_file.as<uint32_t>("<u4");
  const auto probabilities = probability_file.as<float>("<f4");
  if (users.size() != times.size() || users.size() != probabilities.size()) {
    fail(ErrorCode::kCorrupt, folder + ": the three files have different lengths");
  }
  std::vector<float> result(static_cast<size_t>(store.num_events()),
                            std::numeric_limits<float>::quiet_NaN());
  size_t row = 0;
  for (size_t i = 0; i < result.size(); ++i) {
    if (store.kinds()[i] != kListen) continue;
    const auto key = std::pair(store.users()[i], store.timestamps()[i]);
    while (row < users.size() && std::pair(int64_t{users[row]}, int64_t{times[row]}) < key) {
      ++row;
    }
    if (row == users.size() || users[row] != key.first || times[row] != key.second) {
      fail(ErrorCode::kCorrupt,
           fmt::format("{}: has no listen of user {} at {}; the store was not made from this log",
                       folder, key.first, key.second));
    }
    result[i] = probabilities[row++];
  }
  return result;
}

}  // namespace

Predictions predict_by_history(const EventStore& store, int64_t most_events) {
  const SampleSchema& schema = store.schema();
  const EventLog log(store);
  const size_t label = label_pool(schema);
  Predictions out;
  out.sampled_every = std::max<int64_t>(1, (log.num_events() + most_events - 1) / most_events);

  std::vector<size_t> first_of_user;  // into the predictions; one more at the end
  int64_t positives = 0;
  const std::vector<int64_t> users = log.users();
  for (size_t u = 0; u < users.size(); u += static_cast<size_t>(out.sampled_every)) {
    first_of_user.push_back(out.positions.size());
    for (const int64_t i : log.events_of(users[u])) {
      const int64_t kind = log.at(i, &EventStore::kinds);
      if (std::ranges::find(schema.anchor_kinds, kind) == schema.anchor_kinds.end()) continue;
      const bool positive = log.in_pool(label, i);
      out.positions.push_back(i);
      out.labels.push_back(positive ? 1.f : 0.f);
      positives += positive;
    }
  }
  first_of_user.push_back(out.positions.size());
  if (out.positions.empty()) return out;

  const double prior = static_cast<double>(positives) / static_cast<double>(out.positions.size());
  out.item.resize(out.positions.size());
  out.user.resize(out.positions.size());
  if (!schema.attributes.empty()) {
    out.user_attribute.resize(out.positions.size());
    out.attribute = schema.attributes[0].name;
  }
  constexpr int64_t kUsersPerChunk = 64;
  base::parallel_for(
      static_cast<int64_t>(first_of_user.size()) - 1, kUsersPerChunk,
      [&](int64_t begin, int64_t end) {
        for (auto u = static_cast<size_t>(begin); u < static_cast<size_t>(end); ++u) {
          predict_user(store, log, first_of_user[u], first_of_user[u + 1], prior, out);
        }
      });
  predict_items(log, prior, out);
  return out;
}

std::vector<float> read_truth(const EventStore& store, const std::string& raw_folder) {
  const bool appended = !store.segments().empty();
  if (raw_folder.empty()) return appended ? std::vector<float>() : stored_truth(store);
  if (appended) {
    fail(ErrorCode::kUnsupported,
         fmt::format("{}: true probabilities are matched with a store in one piece, and this one "
                     "has {} segments",
                     store.folder(), store.segments().size()));
  }
  return matched_truth(store, raw_folder);
}

}  // namespace segue::data
