#include "data/synth/interactions.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/config_checks.h"
#include "base/error.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "data/synth/draw.h"

namespace segue::data {
namespace {

// What random numbers are for; keys of one seed.
enum Stream : uint64_t { kSamples = 1, kUsers, kItems, kWeights };

// Numbers of the draws of one sample; its dense features take all that follow.
enum SampleDraw : uint32_t { kIds = 0, kLabel = 1, kDense = 2 };

constexpr int64_t kSamplesPerTask = 64;

uint64_t key_of(uint64_t seed, Stream stream) {
  return base::splitmix64(base::splitmix64(seed) ^ stream);
}

std::array<double, Interactions::kRank> factors(uint64_t seed, Stream stream, int64_t id) {
  std::array<double, Interactions::kRank> f;
  for (uint32_t i = 0; i < f.size(); i += 2) {
    const auto pair =
        normals(draw(DrawPurpose::kFactor, key_of(seed, stream), static_cast<uint64_t>(id), i / 2));
    f[i] = pair[0];
    f[i + 1] = pair[1];
  }
  return f;
}

const InteractionConfig& validated(const InteractionConfig& config) {
  config.validate();
  return config;
}

std::vector<float> look_up(const Batch& batch, std::string_view column,
                           const std::vector<float>& means) {
  std::vector<float> predictions;
  for (const int64_t id : batch.column(column).values.span()) {
    SEGUE_ASSERT(id >= 0 && id < static_cast<int64_t>(means.size()), "a batch of another log");
    predictions.push_back(means[static_cast<size_t>(id)]);
  }
  return predictions;
}

}  // namespace

void InteractionConfig::validate() const {
  // Far beyond what any memory holds, and small enough that no product of sizes overflows.
  constexpr int64_t kMostIds = std::numeric_limits<int32_t>::max();
  constexpr int64_t kMostSamples = int64_t{1} << 44;
  base::require_size("data.interactions.users", users, kMostIds);
  base::require_size("data.interactions.items", items, kMostIds);
  base::require_size("data.interactions.dense", dense, int64_t{1} << 16);
  base::require_size("data.interactions.samples", samples, kMostSamples);
  base::require_size("data.interactions.passes", passes, 1000);
  base::require_share("data.interactions.held_out", held_out);
}

void describe(base::ConfigVisitor& v, InteractionConfig& c) {
  v.field("users", c.users, "users of the log");
  v.field("items", c.items, "items of the log");
  v.field("dense", c.dense, "dense features of a sample");
  v.field("samples", c.samples, "samples of the log");
  v.field("passes", c.passes, "how often the training part is gone through");
  v.field("held_out", c.held_out, "share of the samples, the last ones, that is evaluated on");
}

Interactions::Interactions(const InteractionConfig& config, uint64_t seed)
    : config_(validated(config)), seed_(seed) {
  const auto samples = static_cast<double>(config_.samples);
  num_train_ = config_.samples - std::llround(samples * config_.held_out);
  const double scale = 1 / std::sqrt(static_cast<double>(config_.dense));
  for (int64_t i = 0; i < config_.dense; ++i) {
    weights_.push_back(scale * normals(draw(DrawPurpose::kFactor, key_of(seed, kWeights),
                                            static_cast<uint64_t>(i), 0))[0]);
  }
}

double Interactions::probability(int64_t user, int64_t item, std::span<const float> dense) const {
  const auto u = factors(seed_, kUsers, user), v = factors(seed_, kItems, item);
  double logit = kOffset;
  for (size_t i = 0; i < u.size(); ++i) logit += u[i] * v[i];
  for (size_t i = 0; i < dense.size(); ++i) logit += weights_[i] * static_cast<double>(dense[i]);
  return 1 / (1 + std::exp(-logit));
}

Interactions::Sample Interactions::make(int64_t number, std::span<float> dense) const {
  const auto draw_of_sample = [&](uint32_t which) {
    return draw(DrawPurpose::kInteraction, key_of(seed_, kSamples), static_cast<uint64_t>(number),
                which);
  };
  Sample s;
  const Draw ids = draw_of_sample(kIds);
  s.user = static_cast<int64_t>(scale_to(ids.a, static_cast<uint64_t>(config_.users)));
  s.item = static_cast<int64_t>(scale_to(ids.b, static_cast<uint64_t>(config_.items)));
  for (size_t i = 0; i < dense.size(); i += 2) {
    const auto pair = normals(draw_of_sample(kDense + static_cast<uint32_t>(i / 2)));
    dense[i] = static_cast<float>(pair[0]);
    if (i + 1 < dense.size()) dense[i + 1] = static_cast<float>(pair[1]);
  }
  s.label = draw_of_sample(kLabel).uniform_a() < probability(s.user, s.item, dense);
  return s;
}

void Interactions::set_schema(Batch& batch) const {
  constexpr std::array kGroups = {"sample", "dense"};
  constexpr std::array kColumns = {"user_id", "item_id", "label"};
  if (batch.groups.empty()) {
    for (const char* name : kGroups) batch.add_group(name);
    for (const char* name : kColumns) batch.add_column(name, 0);
    batch.add_float_column("dense", 1);
    return;
  }
  const auto in_group = [](int group) {
    return [group](const auto& c) { return c.group == group; };
  };
  const bool same = std::ranges::equal(batch.groups, kGroups, {}, &Batch::Group::name) &&
                    std::ranges::equal(batch.columns, kColumns, {}, &Batch::Column::name) &&
                    std::ranges::all_of(batch.columns, in_group(0)) &&
                    batch.float_columns.size() == 1 && batch.float_columns[0].name == "dense" &&
                    batch.float_columns[0].group == 1;
  if (!same) {
    fail(ErrorCode::kInvalidArgument,
         "interactions: the batch to fill has other groups or columns");
  }
}

void Interactions::fill(int64_t first, int64_t count, int64_t place, int64_t global_samples,
                        Batch& batch) const {
  SEGUE_ASSERT(first >= 0 && count >= 0 && count <= config_.samples - first,
               "samples beyond the end of the log");
  set_schema(batch);
  batch.clear();
  batch.global_samples = global_samples;
  batch.sample_index.resize(count);
  for (Batch::Group& group : batch.groups) group.offsets.resize(count + 1);
  for (Batch::Column& column : batch.columns) column.values.resize(count);
  HostArray<float>& dense = batch.float_columns[0].values;
  dense.resize(count * config_.dense);
  const auto width = static_cast<size_t>(config_.dense);
  base::parallel_for(count, kSamplesPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Sample s = make(first + i, dense.span().subspan(static_cast<size_t>(i) * width, width));
      batch.columns[0].values[i] = s.user;
      batch.columns[1].values[i] = s.item;
      batch.columns[2].values[i] = s.label ? 1 : 0;
      batch.sample_index[i] = place + i;
      batch.groups[0].offsets[i + 1] = i + 1;
      batch.groups[1].offsets[i + 1] = (i + 1) * config_.dense;
    }
  });
}

std::vector<float> Interactions::probabilities(const Batch& batch) const {
  const std::span<const int64_t> users = batch.column("user_id").values.span();
  const std::span<const int64_t> items = batch.column("item_id").values.span();
  const std::span<const float> dense = batch.float_column("dense").values.span();
  const auto width = static_cast<size_t>(config_.dense);
  SEGUE_ASSERT(items.size() == users.size() && dense.size() == users.size() * width,
               "a batch of another log");
  std::vector<float> predictions(users.size());
  for (size_t i = 0; i < users.size(); ++i) {
    predictions[i] =
        static_cast<float>(probability(users[i], items[i], dense.subspan(i * width, width)));
  }
  return predictions;
}

InteractionMeans::InteractionMeans(const Interactions& log) {
  struct Counts {
    int64_t samples = 0, positive = 0;
    void add(int64_t label) {
      ++samples;
      positive += label;
    }
    double mean(double otherwise) const {
      return samples == 0 ? otherwise
                          : static_cast<double>(positive) / static_cast<double>(samples);
    }
  };
  Counts all;
  std::vector<Counts> users(static_cast<size_t>(log.config().users));
  std::vector<Counts> items(static_cast<size_t>(log.config().items));
  constexpr int64_t kBlock = 1 << 16;  // samples in memory at a time
  Batch block;
  for (int64_t first = 0; first < log.num_train(); first += kBlock) {
    log.fill(first, std::min(kBlock, log.num_train() - first), block);
    const HostArray<int64_t>& user = block.column("user_id").values;
    const HostArray<int64_t>& item = block.column("item_id").values;
    const HostArray<int64_t>& label = block.column("label").values;
    for (int64_t i = 0; i < block.num_samples(); ++i) {
      all.add(label[i]);
      users[static_cast<size_t>(user[i])].add(label[i]);
      items[static_cast<size_t>(item[i])].add(label[i]);
    }
  }
  of_all_ = all.mean(0.5);
  for (const Counts& c : users) users_.push_back(static_cast<float>(c.mean(of_all_)));
  for (const Counts& c : items) items_.push_back(static_cast<float>(c.mean(of_all_)));
}

std::vector<float> InteractionMeans::by_user(const Batch& batch) const {
  return look_up(batch, "user_id", users_);
}

std::vector<float> InteractionMeans::by_item(const Batch& batch) const {
  return look_up(batch, "item_id", items_);
}

}  // namespace segue::data
