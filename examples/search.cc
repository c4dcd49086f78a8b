// A search through the library: which layout should train Llama-3.1-8B on 8 H100s, what a step takes, and
// what was left out.
#include "sim/planner/search/search.h"

#include <cstdio>

#include "sim/cost/cluster/read_cluster.h"
#include "sim/cost/cluster/read_software.h"
#include "sim/planner/models/read_model.h"
#include "sim/present/plan/headline.h"

int main() {
  cp::sim::PlanQuestion question;
  question.model = cp::sim::find_model("llama-3.1-8b").model;
  question.cluster = cp::sim::find_cluster("dgx-h100", 1);
  question.software = cp::sim::find_software("megatron");
  question.workload.seq_len = 16384;
  question.workload.global_batch = 8;
  question.fixed.pp = 1;
  const cp::sim::PlanAnswer answer = cp::sim::search_layouts(question);
  std::printf("%s\n", headline(answer).c_str());
  const cp::sim::SearchCounts& counts = answer.counts;
  std::printf("%lld layouts: %lld replayed, %lld need more memory than there is\n",
              static_cast<long long>(counts.enumerated), static_cast<long long>(counts.replayed),
              static_cast<long long>(counts.out_of_memory));
}
