// Jobs whose plans the tests damage.
#pragma once

#include <memory>
#include <string>

#include "sim/fuzz/mutate/trials.h"

namespace cp::testing {

inline proto::FuzzCase ring_case() {
  proto::FuzzCase job;
  proto::Attention& attention = *job.mutable_attention();
  attention.set_mesh("cp=3");
  attention.set_strategy("ring");
  attention.set_balance("head_tail");
  attention.set_seq_len(13);
  attention.set_q_heads(2);
  attention.set_kv_heads(1);
  attention.set_head_dim(4);
  attention.set_causal(true);
  attention.set_backward(true);
  return job;
}

inline proto::FuzzCase redistribute_case(const std::string& from, const std::string& to,
                                         const std::string& mesh = "a=4", const std::string& shape = "8x3") {
  proto::FuzzCase job;
  job.mutable_redistribute()->set_mesh(mesh);
  job.mutable_redistribute()->set_shape(shape);
  job.mutable_redistribute()->set_from(from);
  job.mutable_redistribute()->set_to(to);
  return job;
}

inline proto::PlanMutation mutation_of(sim::MutationKind kind, std::int64_t place, std::uint64_t seed,
                                       bool backward = false) {
  proto::PlanMutation mutation;
  mutation.set_kind(std::string(name(kind)));
  mutation.set_place(static_cast<std::int32_t>(place));
  mutation.set_seed(seed);
  mutation.set_backward(backward);
  return mutation;
}

}  // namespace cp::testing
