#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <cuda_runtime.h>

#include "ops/kernel.cuh"
#include "sparse/hash_index_find.cuh"
#include "sparse/hash_index_growth.cuh"
#include "sparse/hash_index_insert.cuh"
#include "sparse/hash_index_number.cuh"
#include "sparse/hash_index_rules.h"
#include "sparse/hash_index_slots.h"
#include "tensor/buffer.h"
#include "tensor/event.h"
#include "tensor/host_array.h"

// Batches of several indices take five kernels and a scan, and no wait once every shard has its
// largest size:
//   expire  a warp per bucket, with a time to live only
//   plan    finds every key and stamps those that are present; a thread per key, 8 threads for the
//           128 digests of a bucket
//   check   a warp per bucket, below the largest size only: which shards must grow
//   place   8 threads per bucket, without admission only: free slots, and evictions of kLru
//   insert  a warp per bucket, what is left: bucket state lies in registers, 4 slots a lane
//   number  rows' numbers, a thread per key, after a scan over keys that need a new one
//   settle  counts

namespace segue::sparse::detail {
namespace {

using ops::cuda::check_cuda;
using ops::cuda::check_launch;
using ops::cuda::device_ptr;
using ops::cuda::divide_up;

unsigned blocks_for(int64_t threads) { return static_cast<unsigned>(divide_up(threads, kThreads)); }

class CudaHashIndex final : public HashIndex {
 public:
  CudaHashIndex(const HashIndexConfig& config, Device device)
      : config_(config),
        rules_(rules_of(config)),
        device_(device),
        sizes_(static_cast<size_t>(rules_.shards_here()), rules_.start_buckets),
        pool_(device, rules_, rules_.shards_here(), rules_.start_buckets),
        sizes_memory_(device, std::max<int64_t>(1, rules_.shards_here()) * 4, Purpose::kTable),
        state_(device, kStates * static_cast<int64_t>(sizeof(int64_t)), Purpose::kTable) {
    next_row_.set_memory(HostMemory::kPinned);
    next_row_.resize(1);
    next_row_[0] = 0;
    make_free_rows();
    send_sizes();
  }
  ~CudaHashIndex() override = default;

  const HashIndexConfig& config() const override { return config_; }

  void find_or_insert(const Batch& batch, const Found& found, const Stream& stream) override {
    const IndexRequest request{this, batch, found};
    run({&request, 1}, stream);
  }

  /// At most kMostCalls requests. Scratch memory is that of the first one.
  static void run(std::span<const IndexRequest> requests, const Stream& stream) {
    std::vector<Asked> asked;
    unsigned blocks = 0;
    for (const auto& [index, batch, found] : requests) {
      auto& own = static_cast<CudaHashIndex&>(*index);
      SEGUE_ASSERT(batch.step >= own.last_step_ && batch.step <= kMostSteps,
                   "steps do not go back, and fit 32 bits");
      own.last_step_ = batch.step;
      const int64_t n = batch.keys.elements();
      if (n == 0) continue;
      SEGUE_ASSERT(n <= INT32_MAX && !own.sizes_.empty(), "keys of shards that are here");
      asked.push_back({&own, &batch, &found, blocks});
      blocks += blocks_for(n);
    }
    if (asked.empty()) return;
    CudaHashIndex& first = *asked.front().index;
    check_cuda(cudaSetDevice(first.device_.index));
    const int64_t keys = int64_t{blocks} * kThreads;
    SEGUE_ASSERT(keys <= INT32_MAX, "keys of one call are counted in 32 bits");
    first.scratch_.reserve(keys, first.device_, first.done_);
    IndexCalls calls{};
    bool any_times = false, any_candidates = false, any_without = false;
    for (const Asked& a : asked) {
      IndexCall& call = calls.calls[calls.count++];
      call.rules = a.index->rules_;
      call.b = a.index->arguments(*a.batch, *a.found);
      first.scratch_.give(int64_t{a.first_block} * kThreads, call.b);
      call.end_block = a.first_block + blocks_for(call.b.n);
      call.table = a.index->table();
      any_times = any_times || call.rules.keeps_times;
      any_candidates = any_candidates || call.rules.has_candidates;
      any_without = any_without || !call.rules.has_candidates;
    }

    const auto queue = static_cast<cudaStream_t>(stream.handle());
    const auto launch = [&](auto kernel) {
      kernel<<<blocks, kThreads, 0, queue>>>(calls);
      check_launch();
    };
    if (any_times) launch(expire_kernel);
    launch(plan_kernel);
    grow(asked, calls, blocks, stream);
    for (size_t i = 0; i < asked.size(); ++i) {
      asked[i].index->raise_bound(calls.calls[i].b.n);
      calls.calls[i].expects_evictions = asked[i].index->expects_evictions();
    }
    if (any_without) launch(place_kernel);
    if (any_without) launch(insert_kernel<false>);
    if (any_candidates) launch(insert_kernel<true>);
    first.scratch_.count_fresh(keys, queue);
    launch(number_kernel);
    settle_kernel<<<1, kWarp, 0, queue>>>(calls);
    check_launch();
    for (const Asked& a : asked) a.index->done_.record(stream);
  }

  void find(const Tensor& keys, const Tensor& rows, const Stream& stream) const override {
    const int64_t n = keys.elements();
    SEGUE_ASSERT(keys.is_contiguous() && rows.is_contiguous() && rows.elements() == n,
                 "a row for every key");
    if (n == 0) return;
    check_cuda(cudaSetDevice(device_.index));
    const auto queue = static_cast<cudaStream_t>(stream.handle());
    if (sizes_.empty()) {
      check_cuda(
          cudaMemsetAsync(device_ptr<int64_t>(rows), 0xff, static_cast<size_t>(n) * 8, queue));
      return;
    }
    find_kernel<<<blocks_for(n), kThreads, 0, queue>>>(table(), rules_, device_ptr<int64_t>(keys),
                                                       device_ptr<int64_t>(rows), n);
    check_launch();
  }

  int64_t rows_in_use() const override { return rows_bound_; }

  Counts counts() const override {
    done_.synchronize();
    std::vector<int64_t> state(kStates);
    copy_bytes(state.data(), Device::cpu(), state_.data(), device_, kStates * sizeof(int64_t),
               nullptr);
    rows_bound_ = state[kNextRow];
    Counts c;
    c.capacity = capacity_rows();
    c.slots = c.capacity / rules_.rows_per_bucket * kBucketSlots;
    c.rows = state[kNextRow] - state[kFreeRows];
    c.candidates = state[kCandidates];
    c.inserted = state[kInserted];
    c.evicted = state[kEvicted];
    c.expired = state[kExpired];
    c.refused = state[kRefused];
    c.growths = growths_;
    return c;
  }

  Entries entries() const override {
    done_.synchronize();
    const SlotPool host(Device::cpu(), rules_, rules_.shards_here(), pool_.capacity());
    copy_bytes(host.data(), Device::cpu(), pool_.data(), device_, static_cast<size_t>(host.bytes()),
               nullptr);
    return collect_entries(rules_, host, sizes_);
  }

  std::function<Entries()> freeze(const Stream& stream) const override {
    auto held = std::make_shared<SlotPool>(device_, rules_, rules_.shards_here(), pool_.capacity());
    done_.hold(stream);
    copy_bytes(held->data(), device_, pool_.data(), device_, static_cast<size_t>(pool_.bytes()),
               &stream);
    return [held, rules = rules_, sizes = sizes_] {
      const Stream own(held->device());
      const SlotPool host(Device::cpu(), rules, rules.shards_here(), held->capacity());
      copy_bytes(host.data(), Device::cpu(), held->data(), held->device(),
                 static_cast<size_t>(host.bytes()), &own);
      own.synchronize();
      return collect_entries(rules, host, sizes);
    };
  }

  void load(const Entries& entries) override {
    PlacedEntries placed = place_entries(rules_, entries);
    done_.synchronize();
    if (placed.pool.capacity() != pool_.capacity()) {
      pool_ = {};  // first, so that there is room
      pool_ = SlotPool(device_, rules_, rules_.shards_here(), placed.pool.capacity());
    }
    copy_bytes(pool_.data(), device_, placed.pool.data(), Device::cpu(),
               static_cast<size_t>(pool_.bytes()), nullptr);
    sizes_ = std::move(placed.sizes);
    send_sizes();
    free_rows_ = {};
    make_free_rows();
    std::vector<int64_t> state(kStates, 0);
    state[kNextRow] = placed.rows;
    state[kCandidates] = placed.candidates;
    copy_bytes(state_.data(), device_, state.data(), Device::cpu(), kStates * sizeof(int64_t),
               nullptr);
    rows_bound_ = placed.rows;
    next_row_[0] = placed.rows;
    growths_ = 0;
    last_step_ = 0;
  }

  int64_t bytes() const override {
    return pool_.bytes() + sizes_memory_.bytes() + state_.bytes() + free_rows_.bytes() +
           scratch_.bytes();
  }

 private:
  struct Asked {
    CudaHashIndex* index;
    const Batch* batch;
    const Found* found;
    unsigned first_block;
  };

  /// Rows that may be in use after `n` more keys.
  void raise_bound(int64_t n) {
    if (is_largest() && done_.reached()) rows_bound_ = next_row_[0];
    rows_bound_ = std::min(capacity_rows(), rows_bound_ + n);
  }
  bool expects_evictions() const { return rows_bound_ > capacity_rows() / 8 * 7; }

  int64_t capacity_rows() const {
    int64_t buckets = 0;
    for (const uint32_t size : sizes_) buckets += size;
    return buckets * rules_.rows_per_bucket;
  }
  bool is_largest() const {
    return std::ranges::all_of(sizes_, [&](uint32_t size) { return size == rules_.max_buckets; });
  }

  Table table() const {
    return {pool_.slots(), is_even_ ? nullptr : static_cast<const uint32_t*>(sizes_memory_.data()),
            pool_.capacity(), rules_.first_shard, rules_.end_shard};
  }

  /// To be done after sizes_ or the pool changed; waits.
  void send_sizes() {
    is_even_ = std::ranges::all_of(sizes_, [&](uint32_t s) { return s == pool_.capacity(); });
    copy_bytes(sizes_memory_.data(), device_, sizes_.data(), Device::cpu(), sizes_.size() * 4,
               nullptr);
  }

  /// Room for the numbers of all rows, where rows can be forgotten without an heir.
  void make_free_rows() {
    if (!rules_.keeps_times && !rules_.has_candidates) return;
    const int64_t rows = rules_.shards_here() * pool_.capacity() * rules_.rows_per_bucket;
    Buffer larger(device_, rows * 4, Purpose::kTable);
    copy_bytes(larger.data(), device_, free_rows_.data(), device_,
               static_cast<size_t>(free_rows_.bytes()), nullptr);
    free_rows_ = std::move(larger);
  }

  BatchArgs arguments(const Batch& batch, const Found& found) const {
    const int64_t n = batch.keys.elements();
    for (const Tensor& t : {batch.keys, batch.uses, batch.scores, found.rows, found.is_new}) {
      SEGUE_ASSERT(!t || (t.is_contiguous() && t.elements() == n), "one of each for every key");
    }
    SEGUE_ASSERT(found.rows && found.is_new, "room for what is found");
    SEGUE_ASSERT(rules_.evict != Evict::kScore || batch.scores, "kScore needs scores");
    BatchArgs b{};
    b.keys = device_ptr<int64_t>(batch.keys);
    b.uses = device_ptr<int32_t>(batch.uses);
    b.scores = device_ptr<int64_t>(batch.scores);
    b.n = n;
    b.step = batch.step;
    b.time = batch.time;
    b.oldest_kept = rules_.oldest_kept(batch.time);
    b.rows = device_ptr<int64_t>(found.rows);
    b.is_new = device_ptr<uint8_t>(found.is_new);
    b.state = static_cast<int64_t*>(state_.data());
    b.free_rows = static_cast<int32_t*>(free_rows_.data());
    b.next_row = const_cast<int64_t*>(next_row_.data());
    return b;
  }

  // ---- growth ----

  /// Waits for the device unless all have their largest size: what is found there decides what is
  /// done next.
  static void grow(const std::vector<Asked>& asked, IndexCalls& calls, unsigned blocks,
                   const Stream& stream) {
    CudaHashIndex& first = *asked.front().index;
    uint8_t* next = first.scratch_.grows();
    for (size_t i = 0; i < asked.size(); ++i) {
      if (asked[i].index->is_largest()) continue;
      calls.calls[i].b.grows = next;
      next += asked[i].index->sizes_.size();
    }
    const int64_t bytes = next - first.scratch_.grows();
    if (bytes == 0) return;
    const auto queue = static_cast<cudaStream_t>(stream.handle());
    check_cuda(cudaMemsetAsync(first.scratch_.grows(), 0, static_cast<size_t>(bytes), queue));
    check_kernel<<<blocks, kThreads, 0, queue>>>(calls);
    check_launch();
    HostArray<uint8_t>& marked = first.marked_;
    marked.set_memory(HostMemory::kPinned);
    marked.resize(bytes);
    copy_bytes(marked.data(), Device::cpu(), first.scratch_.grows(), first.device_,
               static_cast<size_t>(bytes), &stream);
    stream.synchronize();
    for (size_t i = 0; i < asked.size(); ++i) {
      IndexCall& call = calls.calls[i];
      if (call.b.grows == nullptr) continue;
      CudaHashIndex& own = *asked[i].index;
      own.rows_bound_ = own.next_row_[0];
      own.grow(call.b, marked.data() + (call.b.grows - first.scratch_.grows()), stream);
      call.table = own.table();
      call.b.free_rows = static_cast<int32_t*>(own.free_rows_.data());  // it may have moved
    }
  }

  void grow(const BatchArgs& b, const uint8_t* marked, const Stream& stream) {
    std::vector<GrowingShard> shards;
    for (size_t s = 0; s < sizes_.size(); ++s) {
      if (marked[s] == 0) continue;
      shards.push_back({static_cast<uint32_t>(s), sizes_[s], sizes_[s], 0});
    }
    if (shards.empty()) return;
    choose_sizes(shards, b, stream);
    if (shards.empty()) return;
    std::vector<uint32_t> sizes = sizes_;
    for (const GrowingShard& shard : shards) sizes[shard.shard] = shard.new_size;
    const uint32_t capacity = largest_size(rules_, sizes);
    if (capacity > pool_.capacity()) {
      move_all(sizes, capacity, stream);
    } else {
      move_in_place(shards, stream);
    }
    growths_ += static_cast<int64_t>(shards.size());
    const bool has_more_room =
        free_rows_.bytes() > 0 && capacity_of(free_rows_) < capacity_of(pool_);
    sizes_ = std::move(sizes);
    send_sizes();
    if (has_more_room) make_free_rows();
  }
  static int64_t capacity_of(const Buffer& numbers) { return numbers.bytes() / 4; }
  int64_t capacity_of(const SlotPool& pool) const {
    return pool.num_slots() / kBucketSlots * rules_.rows_per_bucket;
  }

  /// The new sizes of shards; drops those that cannot grow.
  void choose_sizes(std::vector<GrowingShard>& shards, const BatchArgs& b,
                    const Stream& stream) const {
    std::vector<GrowingShard> chosen, trial = shards;
    while (!trial.empty()) {
      for (GrowingShard& shard : trial) shard.new_size = rules_.next_size(shard.new_size);
      const std::vector<int> misfits = try_sizes(trial, b, stream);
      std::vector<GrowingShard> again;
      for (size_t k = 0; k < trial.size(); ++k) {
        if ((misfits[k] & kHoldsTooMuch) == 0) chosen.push_back(trial[k]);
        if (misfits[k] != 0 && trial[k].new_size < rules_.max_buckets) again.push_back(trial[k]);
      }
      trial = std::move(again);
    }
    // Of the sizes that hold a shard the last: it was tried on only as long as none sufficed.
    std::ranges::sort(chosen, [](const GrowingShard& x, const GrowingShard& y) {
      return x.shard != y.shard ? x.shard < y.shard : x.new_size > y.new_size;
    });
    const auto rest = std::ranges::unique(
        chosen, [](const GrowingShard& x, const GrowingShard& y) { return x.shard == y.shard; });
    chosen.erase(rest.begin(), rest.end());
    shards = std::move(chosen);
  }

  /// A copy of the list on the device.
  Buffer send(const std::vector<GrowingShard>& shards, int64_t extra_bytes = 0) const {
    const auto bytes = static_cast<int64_t>(shards.size() * sizeof(GrowingShard));
    Buffer list(device_, bytes + extra_bytes, Purpose::kScratch);
    copy_bytes(list.data(), device_, shards.data(), Device::cpu(), static_cast<size_t>(bytes),
               nullptr);
    return list;
  }
  /// A warp for every bucket of the largest shard.
  static dim3 grid_for(const std::vector<GrowingShard>& shards) {
    uint32_t largest = 0;
    for (const GrowingShard& shard : shards) largest = std::max(largest, shard.new_size);
    return {static_cast<unsigned>(divide_up(largest, kWarpsPerBlock)),
            static_cast<unsigned>(shards.size()), 1};
  }

  std::vector<int> try_sizes(const std::vector<GrowingShard>& shards, const BatchArgs& b,
                             const Stream& stream) const {
    std::vector<int> misfits(shards.size());
    const Buffer list = send(shards, static_cast<int64_t>(shards.size() * sizeof(int)));
    const auto* on_device = static_cast<const GrowingShard*>(list.data());
    auto* flags = reinterpret_cast<int*>(static_cast<GrowingShard*>(list.data()) + shards.size());
    fit_kernel<<<grid_for(shards), kThreads, 0, static_cast<cudaStream_t>(stream.handle())>>>(
        table(), rules_, b, on_device, flags);
    check_launch();
    copy_bytes(misfits.data(), Device::cpu(), flags, device_, misfits.size() * sizeof(int),
               &stream);
    stream.synchronize();
    return misfits;
  }

  void move(const std::vector<GrowingShard>& shards, const SlotPool& to,
            const Stream& stream) const {
    const Buffer list = send(shards);
    move_kernel<<<grid_for(shards), kThreads, 0, static_cast<cudaStream_t>(stream.handle())>>>(
        table(), rules_, static_cast<const GrowingShard*>(list.data()), to.slots());
    check_launch();
    stream.synchronize();
  }

  /// Every shard into new memory: room to grow for the others, too, so that they do it in place.
  void move_all(const std::vector<uint32_t>& sizes, uint32_t capacity, const Stream& stream) {
    SlotPool grown(device_, rules_, rules_.shards_here(), capacity);
    std::vector<GrowingShard> shards;
    for (size_t s = 0; s < sizes.size(); ++s) {
      const auto shard = static_cast<uint32_t>(s);
      shards.push_back({shard, sizes_[s], sizes[s], shard * capacity});
    }
    move(shards, grown, stream);
    pool_ = std::move(grown);
  }

  /// By way of some other memory, few shards at a time.
  void move_in_place(const std::vector<GrowingShard>& all, const Stream& stream) {
    constexpr int64_t kMostSlots = int64_t{1} << 22;
    for (size_t next = 0; next < all.size();) {
      std::vector<GrowingShard> shards;
      uint32_t buckets = 0;
      do {
        shards.push_back(all[next]);
        shards.back().to_bucket = buckets;
        buckets += all[next++].new_size;
      } while (next < all.size() &&
               (int64_t{buckets} + all[next].new_size) * kBucketSlots <= kMostSlots);
      const SlotPool grown(device_, rules_, 1, buckets);
      move(shards, grown, stream);
      for (const GrowingShard& shard : shards) copy_back(shard, grown, stream);
      stream.synchronize();
    }
  }
  void copy_back(const GrowingShard& shard, const SlotPool& grown, const Stream& stream) const {
    const Slots from = grown.slots().at(grown.first_slot(0, shard.to_bucket));
    const Slots to = pool_.slots().at(pool_.first_slot(shard.shard, 0));
    const auto copy_field = [&]<class T>(T* into, const T* field) {
      if (field == nullptr) return;
      copy_bytes(into, device_, field, device_, size_t{shard.new_size} * kBucketSlots * sizeof(T),
                 &stream);
    };
    copy_field(to.digests, from.digests);
    copy_field(to.keys, from.keys);
    copy_field(to.rows, from.rows);
    copy_field(to.steps, from.steps);
    copy_field(to.scores, from.scores);
    copy_field(to.times, from.times);
  }

  HashIndexConfig config_;
  IndexRules rules_;
  Device device_;
  std::vector<uint32_t> sizes_;  // buckets of each shard
  SlotPool pool_;
  Buffer sizes_memory_;
  Buffer state_;
  Buffer free_rows_;
  bool is_even_ = true;
  mutable int64_t rows_bound_ = 0;  // counts() knows better
  int64_t last_step_ = 0, growths_ = 0;
  Event done_;
  HostArray<int64_t> next_row_;  // pinned, one: after the last batch that is done
  IndexScratch scratch_;
  HostArray<uint8_t> marked_;  // shards that must grow, of all indices of a call
};

}  // namespace

std::unique_ptr<HashIndex> make_cuda_hash_index(const HashIndexConfig& config, Device device) {
  require_available(device);
  return std::make_unique<CudaHashIndex>(config, device);
}

void cuda_find_or_insert(std::span<const IndexRequest> requests, const Stream& stream) {
  while (!requests.empty()) {
    const auto some = requests.first(std::min<size_t>(requests.size(), kMostCalls));
    requests = requests.subspan(some.size());
    CudaHashIndex::run(some, stream);
  }
}

}  // namespace segue::sparse::detail
