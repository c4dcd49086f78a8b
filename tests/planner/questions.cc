#include "tests/planner/questions.h"

#include "sim/cost/cluster/read_cluster.h"
#include "sim/cost/cluster/read_software.h"
#include "sim/planner/models/read_model.h"

namespace cp::testing {

sim::PlanQuestion training_question(const std::string& model, int nodes, std::int64_t seq_len,
                                    std::int64_t batch) {
  sim::PlanQuestion question;
  question.model = sim::load_model(model).model;
  question.cluster = sim::find_cluster("dgx-h100", nodes);
  question.software = sim::find_software("cprun");
  question.workload.seq_len = seq_len, question.workload.global_batch = batch;
  return question;
}

sim::PlanQuestion small_question(int gpus, std::int64_t seq_len, std::int64_t batch) {
  sim::PlanQuestion question;
  question.model.name = "small";
  question.model.hidden = 512, question.model.layers = 4, question.model.intermediate = 1024;
  question.model.q_heads = 8, question.model.kv_heads = 4, question.model.head_dim = 64,
  question.model.vocab = 8000;
  question.cluster = sim::find_cluster("dgx-h100", 1);
  question.cluster.node.gpus = question.cluster.node.nvlink_domain = 4;
  question.cluster.nodes = gpus / 4;
  question.software = sim::find_software("cprun");
  question.workload.seq_len = seq_len, question.workload.global_batch = batch;
  return question;
}

}  // namespace cp::testing
