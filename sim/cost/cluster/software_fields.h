// Every field of a SoftwareProfile by name: the one list that reading, writing and checking walk.
#pragma once

#include <vector>

#include "sim/cost/cluster/software.h"
#include "sim/cost/cluster/sourced_text.h"

namespace cp::sim {

// visit(name, number, range), for the free parameters.
template <class AnySoftware, class Visit>
void for_each_parameter(AnySoftware& software, Visit&& visit) {
  visit("forward_progress", software.forward_progress, Range{0, 1});
  visit("backward_progress", software.backward_progress, Range{0, 1});
  visit("merge_passes", software.merge_passes, Range{0, 100});
  visit("pack_passes", software.pack_passes, Range{0, 100});
  visit("kernel_issue_us", software.kernel_issue_us, Range{0, 1e4});
}

// visit(name, fact), for those that are a flag or a name.
template <class AnySoftware, class Visit>
void for_each_fact(AnySoftware& software, Visit&& visit) {
  visit("captured_graphs", software.captured_graphs);
  visit("send_empty", software.send_empty);
  visit("dkv_f32", software.dkv_f32);
  visit("strategy", software.strategy);
  visit("balance", software.balance);
  visit("framework", software.framework);
  visit("attention_kernel", software.attention_kernel);
  visit("expert_kernel", software.expert_kernel);
}

// visit(name, number, range), for the facts that are a number.
template <class AnySoftware, class Visit>
void for_each_number_of_facts(AnySoftware& software, Visit&& visit) {
  visit("collective_issue_us", software.collective_issue_us, Range{0, 1e4});
  visit("transfer_issue_us", software.transfer_issue_us, Range{0, 1e4});
  visit("loss_f32_copies", software.loss_f32_copies, Range{0, 16});
  visit("allocator_slack", software.allocator_slack, Range{0, 1});
}

// visit(name, number, range) and visit(name, fact), for what a profile may leave out: passes are one where a
// fused kernel does the work, and the rest matters to software that serves or computes in fp8.
template <class AnySoftware, class Visit>
void for_each_optional_number(AnySoftware& software, Visit&& visit) {
  visit("rotary_passes", software.rotary_passes, Range{1, 100});
  visit("loss_passes", software.loss_passes, Range{1, 100});
  visit("optimizer_passes", software.optimizer_passes, Range{1, 100});
  visit("max_ctas", software.max_ctas, Range{0, 64});
  visit("step_host_us", software.step_host_us, Range{0, 1e6});
  visit("request_host_us", software.request_host_us, Range{0, 1e6});
}
template <class AnySoftware, class Visit>
void for_each_optional_fact(AnySoftware& software, Visit&& visit) {
  visit("fp8_head", software.fp8_head);
  visit("fp8_casts_both", software.fp8_casts_both);
  visit("all_reduce", software.all_reduce);
  visit("stored_products", software.stored_products);
  visit("fused_rows", software.fused_rows);
  visit("prompts_apart", software.prompts_apart);
  visit("host_ahead", software.host_ahead);
}

// What validate_software throws.
std::vector<FieldError> software_errors(const SoftwareProfile& software);

}  // namespace cp::sim
