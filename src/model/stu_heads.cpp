// Attention of an STU layer with its heads split over the ranks of a group: an exchange turns all
// heads of this rank's tokens into this rank's heads of all tokens, another one turns the result
// back. Where V, Q and K were not kept, backward sends them again with the gradient, so that it
// takes two exchanges as well.

#include <array>

#include "attention/hstu_attention.h"
#include "model/arena_plan.h"
#include "model/head_group.h"
#include "model/stu.h"

namespace segue::model {

void StuLayer::split_forward_memory(const Exec& exec, const Sequences& seq) const {
  const GroupSequences& group = *seq.group;
  const int64_t v_width = config_.value_width() / group.ranks();
  HeadGroup::exchange_memory(exec, group, seq.tokens(), vqk_block().width / group.ranks());
  exec.activation({group.tokens(), v_width});  // o
  HeadGroup::exchange_memory(exec, group, seq.tokens(), v_width);
}

void StuLayer::split_attention_forward(const Exec& exec, const Sequences& seq,
                                       const Saved& s) const {
  const Arena::Mark scratch(*exec.arena);
  HeadGroup& group = *seq.heads;
  const VqkColumns own = vqk_columns(s.act, config_.heads);
  group.scatter_heads(exec, *seq.group, std::array{own.v, own.q, own.k}, s.group_vqk);
  const Tensor o = exec.activation({seq.group->tokens(), group.own_heads() * config_.v_dim});
  attention::hstu_attention_forward(exec, attention_params(seq, s.group_vqk),
                                    o.split_columns(group.own_heads()));
  group.gather_heads(exec, *seq.group, o, std::array{s.a});
}

void StuLayer::split_backward_memory(const Exec& exec, const Sequences& seq) const {
  const Arena::Mark scratch(*exec.arena);
  const GroupSequences& group = *seq.group;
  const int64_t vqk_width = vqk_block().width / group.ranks();
  const int64_t v_width = config_.value_width() / group.ranks();
  const int64_t sent = config_.recompute.uvqk ? vqk_width + v_width : v_width;
  exec.activation({group.tokens(), sent});  // d_o, and V, Q, K unless they were kept
  HeadGroup::exchange_memory(exec, group, seq.tokens(), sent);
  exec.activation({group.tokens(), vqk_width});  // d_vqk
  if (exec.dtype() == DType::kBf16) {
    plan_scratch(exec, attention::hstu_attention_backward_bytes(
                           group.offsets, config_.heads / group.ranks(), config_.mask, 0));
  }
  HeadGroup::exchange_memory(exec, group, seq.tokens(), vqk_width);
}

void StuLayer::split_attention_backward(const Exec& exec, const Sequences& seq, const Saved& s,
                                        const Tensor& da, const Tensor& dz) const {
  const Arena::Mark scratch(*exec.arena);
  HeadGroup& group = *seq.heads;
  const int64_t heads = group.own_heads();
  const int64_t rows = seq.group->tokens();
  const int64_t vqk_width = heads * (config_.v_dim + 2 * config_.qk_dim);
  const int64_t v_width = heads * config_.v_dim;

  Tensor vqk = s.group_vqk;
  Tensor d_o;
  if (vqk) {
    d_o = exec.activation({rows, v_width});
    group.scatter_heads(exec, *seq.group, std::array{da}, d_o);
  } else {
    const VqkColumns own = vqk_columns(s.act, config_.heads);
    const Tensor both = exec.activation({rows, vqk_width + v_width});
    group.scatter_heads(exec, *seq.group, std::array{own.v, own.q, own.k, da}, both);
    vqk = both.columns(0, vqk_width);
    d_o = both.columns(vqk_width, v_width);
  }
  const Tensor d_vqk = exec.activation({rows, vqk_width});
  const VqkColumns d = vqk_columns(d_vqk, heads);
  attention::hstu_attention_backward(exec, attention_params(seq, vqk), d_o.split_columns(heads),
                                     d.q.split_columns(heads), d.k.split_columns(heads),
                                     d.v.split_columns(heads));
  group.gather_heads(
      exec, *seq.group, d_vqk,
      std::array{columns(dz, v_block()), columns(dz, q_block()), columns(dz, k_block())});
}

}  // namespace segue::model
