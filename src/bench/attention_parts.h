#pragma once

#include "attention/hstu_attention.h"
#include "bench/bench.h"

namespace segue::bench {

/// What backward reads and writes beside the inputs of forward.
struct AttentionGradients {
  Tensor grad_o, dq, dk, dv;
};

/// Times the kernels that backward is made of on a Hopper card, one result each; elsewhere a note
/// says that there are none. `like` describes the shape; its flop are those of forward.
void measure_attention_parts(const Exec& exec, const Repeats& repeats,
                             const attention::HstuAttentionParams& p, const AttentionGradients& g,
                             const Result& like, Report& report);

}  // namespace segue::bench
