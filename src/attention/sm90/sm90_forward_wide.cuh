#pragma once

#include "attention/sm90/sm90_forward.cuh"
#include "attention/sm90/sm90_store.cuh"

/// Heads of 256: one stream of key blocks per tile. The product with v of a block comes while the
/// scores of the next one are computed; the last one of a tile, and its output, while the next
/// tile's queries arrive.
namespace segue::attention::hopper {

template <class T, bool kHalves>
__device__ void compute_wide(ForwardShared<T, 256, kHalves>& sh, const ForwardArgs& args,
                             int consumer) {
  using Shape = ForwardShape<256>;
  constexpr int kKeys = Shape::kKeys;
  constexpr int kTurnThreads = 2 * kWarpgroup;
  const bool leader = (threadIdx.x & 31) == 0;
  typename decltype(sh.queue)::Position at_tile;
  RingPosition<Shape::kKeyStages> at;
  RingPosition<Shape::kValueStages> at_v;  // of the oldest block not yet multiplied by v
  int q_parity = 0;
  const auto release = [&](uint64_t* barrier) {
    __syncwarp();  // what other lanes read is read
    if (leader) barrier_arrive(barrier);
  };
  const auto take_turn = [&] { named_sync(1 + consumer, kTurnThreads); };
  const auto pass_turn = [&] { named_arrive(2 - consumer, kTurnThreads); };
  if (consumer == 1) named_arrive(1, kTurnThreads);

  for (;;) {
    const Tile t = sh.queue.take(at_tile);
    if (t.head < 0) break;
    barrier_wait(&sh.q_full[consumer], q_parity);
    q_parity ^= 1;
    float o[128];
#pragma unroll
    for (float& x : o) x = 0;
    uint32_t p[kKeys / 16][4];
    int left = t.count;
    const AlongRows<64> q(sh.q[consumer]);
    const auto next_word = [&] {
      barrier_wait(&sh.k_full[at.stage], at.parity);
      return StepWord::read(sh.word[at.stage]);
    };
    // With the last scores of a tile its queries are no longer needed.
    const auto end_scores = [&] {
      release(&sh.k_empty[at.stage]);
      if (left == 1) release(&sh.q_empty[consumer]);
      at.advance();
      --left;
    };
    const auto activate = [&](auto& s, StepWord word) {
      if (word.view(consumer) != kAll) {
        hide<kKeys>(s, args.mask, sh.queue.tiles[at_tile.stage], word, consumer);
      }
      silu(s, args.half_alpha);
    };
    const auto multiply_values = [&] {
      barrier_wait(&sh.v_full[at_v.stage], at_v.parity);
      products_begin();
      multiply<T, kKeys / 16, true>(o, p, DownRows<kKeys>(sh.v[at_v.stage]));
      products_commit();
    };
    const auto end_values = [&] {
      products_wait<0>();
      pin(o);
      release(&sh.v_empty[at_v.stage]);
      at_v.advance();
    };
    while (left > 0) {
      StepWord word = next_word();
      if (word.view(consumer) == kNone) {
        take_turn();
        pass_turn();
        end_scores();
        barrier_wait(&sh.v_full[at_v.stage], at_v.parity);
        release(&sh.v_empty[at_v.stage]);
        at_v.advance();
        continue;
      }
      {
        float s[kKeys / 2];
        take_turn();
        products_begin();
        multiply<T, 16, false>(s, q, AlongRows<kKeys>(sh.k[at.stage]));
        products_commit();
        pass_turn();
        products_wait<0>();
        pin(s);
        end_scores();
        activate(s, word);
        to_fragment<T>(p, s);
      }
      while (left > 0) {
        word = next_word();
        if (word.view(consumer) == kNone) break;
        float s[kKeys / 2];
        take_turn();
        products_begin();
        multiply<T, 16, false>(s, q, AlongRows<kKeys>(sh.k[at.stage]));
        products_commit();
        multiply_values();
        pass_turn();
        products_wait<1>();
        pin(s);
        end_scores();
        activate(s, word);
        settle(s);
        end_values();
        to_fragment<T>(p, s);
      }
      multiply_values();
      end_values();
    }
    const int first = t.begin + 64 * consumer;
    if (first < t.n) {
      T* to = static_cast<T*>(args.o) + (t.first_row + first) * args.row_stride +
              t.head * args.head_stride;
      store_rows(o, args.scale, sh.o[consumer], to, args.row_stride, t.n - first, args.columns,
                 [](int) {});
    }
    sh.queue.release(at_tile.stage);
    at_tile.advance();
  }
}

}  // namespace segue::attention::hopper
