// The items of a batch: each once, with its attributes.

#include <algorithm>
#include <atomic>
#include <numeric>
#include <utility>

#include "base/parallel.h"
#include "model/ranker.h"
#include "model/ranker_batch.h"
#include "model/ranker_parts.h"

namespace segue::model {

/// A feature of every event, then of every candidate.
sparse::IdRange Ranker::read_feature(const Batch& batch, const SequenceFeature& feature,
                                     HostArray<int64_t>& to) {
  to.resize(0);
  sparse::IdRange range;
  const auto append = [&](const std::string& column) {
    const std::span<const int64_t> from = batch.values(column, places_->attribute);
    const int64_t begin = to.size();
    to.resize(begin + std::ssize(from));
    std::vector<sparse::IdRange> parts(
        static_cast<size_t>(base::num_chunks(std::ssize(from), kEventsPerTask)));
    int64_t* const copies = to.data() + begin;
    base::parallel_for(std::ssize(from), kEventsPerTask, [&, copies](int64_t first, int64_t end) {
      sparse::IdRange part;
      for (int64_t i = first; i < end; ++i) {
        const int64_t id = from[static_cast<size_t>(i)];
        part.add(id);
        copies[i] = id;
      }
      parts[static_cast<size_t>(first / kEventsPerTask)] = part;
    });
    for (const sparse::IdRange& part : parts) {
      range.add(part.smallest);
      range.add(part.largest);
    }
  };
  append(feature.history);
  if (config_.labels == LabelKind::kCandidates) append(feature.candidate);
  return range;
}

/// Reads the ids, and sends them to the GPU if there is one.
void Ranker::start_items(const Batch& batch, RankerBatch& out) {
  Places& places = *places_;
  const Device device = parameters_.values().device;
  if (device.is_cuda() && config_.identities.distinct_rows) {
    if (!places.on_device) places.on_device = std::make_unique<Places::OnDevice>(device);
    places.ids.set_memory(HostMemory::kPinned);
    places.items.values.set_memory(HostMemory::kPinned);
    places.example.set_memory(HostMemory::kPinned);
  }
  const sparse::IdRange range = read_feature(batch, config_.item, places.ids);
  if (!places.on_device) return;
  auto& [stream, dedup, found] = *places.on_device;
  const Tensor ids = dedup.input(places.ids.size(), device);
  copy(ids, places.ids.tensor(), &stream);
  found = dedup.find(ids, range, false, stream);
  copy(host_view(out.block.span(out.item)), found.inverse, &stream);
}

/// Fills places.items, places.example and the item of every event and candidate.
void Ranker::finish_items(RankerBatch& out) {
  Places& places = *places_;
  if (places.on_device) {
    const auto& [stream, dedup, found] = *places.on_device;
    const int64_t count = dedup.count();
    places.items.values.resize(count);
    places.example.resize(count);
    copy(places.items.values.tensor(), found.values.narrow(0, 0, count), &stream);
    copy(places.example.tensor(), found.first.narrow(0, 0, count), &stream);
    stream.synchronize();
    return;
  }
  sparse::distinct(places.ids.span(), false, places.scratch, places.items);
  places.example.resize(places.items.values.size());
  const std::span<int32_t> item = out.block.span(out.item);
  base::parallel_for(std::ssize(item), kEventsPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int32_t of = places.items.inverse[i];
      item[static_cast<size_t>(i)] = of;
      std::atomic_ref(places.example[of]).store(static_cast<int32_t>(i), std::memory_order_relaxed);
    }
  });
}

/// False: an item has several values of the feature.
bool Ranker::attribute_of_items(const Batch& batch, const SequenceFeature& feature,
                                std::span<const int32_t> item, HostArray<int64_t>& of_item) {
  const std::span<const int64_t> items = std::as_const(places_->items.values).span();
  const std::span<const int32_t> example = std::as_const(places_->example).span();
  of_item.resize(std::ssize(items));
  // f(values, place of the first) for what the batch says of its candidates, and of its events
  // unless a map does.
  const Batch::Attribute* const map = batch.find_attribute(feature.history);
  const bool mapped =
      map != nullptr && batch.columns[static_cast<size_t>(map->of)].name == config_.item.history;
  const auto for_columns = [&](const auto& f) {
    if (!mapped) f(batch.values(feature.history, places_->attribute), size_t{0});
    if (config_.labels != LabelKind::kCandidates) return;
    const std::span<const int64_t> values = batch.values(feature.candidate, places_->attribute);
    f(values, item.size() - values.size());
  };
  const auto for_items = [&](const auto& f) {
    base::parallel_for(of_item.size(), kEventsPerTask, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) f(i);
    });
  };
  if (mapped) {
    for_items([&](int64_t i) { of_item[i] = map->of_id(items[static_cast<size_t>(i)]); });
  } else {
    for_columns([&](std::span<const int64_t> values, size_t first) {
      for_items([&](int64_t i) {
        const size_t at = static_cast<size_t>(example[static_cast<size_t>(i)]) - first;
        if (at < values.size()) of_item[i] = values[at];
      });
    });
  }
  std::atomic<bool> decided = true;
  for_columns([&](std::span<const int64_t> values, size_t first) {
    const int64_t* const known = of_item.data();
    const int32_t* const of = item.data() + first;
    base::parallel_for(std::ssize(values), kEventsPerTask, [&](int64_t begin, int64_t end) {
      int64_t difference = 0;  // no branches: most of the time there is none
      for (int64_t i = begin; i < end; ++i) {
        difference |= known[of[i]] ^ values[static_cast<size_t>(i)];
      }
      if (difference != 0) decided.store(false, std::memory_order_relaxed);
    });
  });
  return decided;
}

/// Items of the batch, each once, with what they decide. Where one comes with different attributes,
/// and without the identity of distinct rows, every event and candidate is an item of its own.
void Ranker::find_items(const Batch& batch, RankerBatch& out) {
  Places& places = *places_;
  places.attributes.resize(columns_.size() - 1);
  bool decided = config_.identities.distinct_rows;
  if (decided) finish_items(out);
  const std::span<int32_t> item = out.block.span(out.item);
  for (size_t c = 1; c < columns_.size() && decided; ++c) {
    decided = attribute_of_items(batch, columns_[c], item, places.attributes[c - 1]);
  }
  if (decided) return;
  std::swap(places.items.values, places.ids);
  std::iota(item.begin(), item.end(), 0);
  for (size_t c = 1; c < columns_.size(); ++c) {
    read_feature(batch, columns_[c], places.attributes[c - 1]);
  }
}

}  // namespace segue::model
