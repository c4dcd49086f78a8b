// What cpsim plan is asked of servers: formats that are stored, and prompts that are read on the same GPUs.
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/cpsim/plan/plan_request.h"
#include "sim/planner/search/question.h"
#include "sim/present/plan/plan_inputs.h"
#include "tests/support/messages.h"

namespace cp::cli {
namespace {

using ::cp::testing::message_of;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using Job = proto::PlanLayouts;

Job served() {
  Job job;
  job.set_model("llama-3.1-8b");
  job.set_cluster("hgx-b200");
  job.set_gpus(8);
  job.set_software("trtllm");
  job.set_phase(Job::decode);
  job.set_cached(1000);
  job.set_new_tokens(200);
  job.set_concurrent(64);
  return job;
}

template <class Change>
std::string error_after(const Change& change) {
  Job job = served();
  change(job);
  return message_of([&] { make_plan_question(job); });
}

TEST(PlanServing, FormatsAndArrivalsAreTheQuestions) {
  Job job = served();
  job.set_linear_dtype("nvfp4");
  job.set_fp8_cache(true);
  job.set_aggregated("together");
  const sim::PlanQuestion question = make_plan_question(job);
  EXPECT_EQ(sim::linear_dtype_name(question), "nvfp4");
  EXPECT_EQ(sim::cache_dtype_name(question), "fp8");
  EXPECT_EQ(question.aggregated, sim::Arrivals::together);
  EXPECT_THAT(question.assumptions, Not(Contains(HasSubstr("kv_dtype"))));
  bool said = false;
  for (const auto& [title, text] : plan_inputs(question))
    said = said ||
           (text.find("products nvfp4, KV cache fp8, prompts are read on the same GPUs, of requests that "
                      "come together") != std::string::npos);
  EXPECT_TRUE(said);
  EXPECT_FALSE(make_plan_question(served()).aggregated);
}

TEST(PlanServing, TheCommandSaysThemAgain) {
  Job job = served();
  job.set_fp8_cache(true);
  job.set_aggregated("spread");
  EXPECT_THAT(plan_command(job), HasSubstr("--kv-dtype fp8"));
  EXPECT_THAT(plan_command(job), HasSubstr("--aggregated spread"));
}

TEST(PlanServing, AnAllReduceThatTheGpuDoesNotHaveIsRefused) {
  const std::string file = ::testing::TempDir() + "slip.txtpb";
  std::ofstream(file)
      << "name: \"mine\" like: \"trtllm\" all_reduce { value: \"trtlm\" origin: measured source: \"x\" }";
  EXPECT_THAT(error_after([&](Job& j) { j.set_software(file); }),
              HasSubstr("all_reduce 'trtlm': NVIDIA B200-SXM6-180GB has no rate of this kernel; the nearest "
                        "one is 'trtllm'; "
                        "use one of nccl, trtllm, vllm, sglang"));
  Job job = served();
  EXPECT_THAT(make_plan_question(job).assumptions, Not(Contains(HasSubstr("all-reduces"))));
  job.set_cluster("l40s-pcie");
  EXPECT_THAT(make_plan_question(job).assumptions,
              Contains("all-reduces of NCCL: l40s-pcie has no rate of trtllm's"));
}

TEST(PlanServing, RefusesWhatCannotBe) {
  EXPECT_THAT(error_after([](Job& j) { j.set_aggregated("evenly"); }),
              HasSubstr("--aggregated evenly is unknown; use spread or together"));
  EXPECT_THAT(error_after([](Job& j) {
                j.set_aggregated("spread");
                j.set_phase(Job::prefill);
                j.set_seq_len(1000);
                j.clear_cached();
                j.clear_new_tokens();
              }),
              HasSubstr("--aggregated spread does not apply to prefill, which writes no tokens; use "
                        "--phase decode"));
  EXPECT_THAT(error_after([](Job& j) {
                j.set_aggregated("spread");
                j.set_cached(0);
              }),
              HasSubstr("use --cached 1 or more"));
  EXPECT_THAT(error_after([](Job& j) {
                j.set_linear_dtype("nvfp4");
                j.set_software("cprun");
              }),
              HasSubstr("--linear-dtype nvfp4: software cprun does not say that it serves stored weights "
                        "(stored_products); use --linear-dtype fp8, or --software trtllm, vllm or sglang"));
  EXPECT_THAT(error_after([](Job& j) {
                j.set_linear_dtype("nvfp4");
                j.set_cluster("dgx-h100");
              }),
              HasSubstr("has no rate of matmuls in 4 bits; use --linear-dtype fp8"));
  Job training;
  training.set_model("llama-3.1-8b");
  training.set_seq_len(4096);
  training.set_global_batch(8);
  training.set_fp8_cache(true);
  EXPECT_THAT(message_of([&] { make_plan_question(training); }), HasSubstr("--kv-dtype"));
}

}  // namespace
}  // namespace cp::cli
