#include "shared/transformer/workload.h"

#include <limits>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/messages.h"

namespace cp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;

Workload workload(Phase phase, std::int64_t seq_len, std::int64_t cached = 0, std::int64_t new_tokens = 0) {
  Workload w;
  w.phase = phase, w.seq_len = seq_len, w.cached = cached, w.new_tokens = new_tokens;
  return w;
}

TEST(PhaseText, RoundTrips) {
  for (const Phase phase : {Phase::training, Phase::prefill, Phase::decode}) {
    EXPECT_EQ(parse_phase(name(phase)), phase);
  }
  EXPECT_EQ(message_of([] { parse_phase("train"); }),
            "unknown phase 'train'; use training, prefill or decode");
}

TEST(OptimizerText, RoundTrips) {
  for (const char* text : {"adamw", "adamw_16", "sgd", "sgd_momentum", "adamw:offload", "sgd:offload"}) {
    EXPECT_EQ(to_string(parse_optimizer(text)), text);
  }
  EXPECT_EQ(parse_optimizer("adamw"), Optimizer{});
  EXPECT_EQ(parse_optimizer("adamw_16").state_dtype, DType::bf16);
  EXPECT_EQ(parse_optimizer("sgd").states, 0);
  EXPECT_EQ(parse_optimizer("sgd_momentum:offload"), (Optimizer{"sgd_momentum", 1, DType::f32, true}));
}

TEST(OptimizerText, UnknownOnesAreRefusedWithTheList) {
  for (const char* text : {"adam", "", ":offload", "adamw:", "adamw:offload:offload"}) {
    EXPECT_THAT(message_of([&] { parse_optimizer(text); }),
                AllOf(HasSubstr(str("unknown optimizer '", text, "'")),
                      HasSubstr("adamw, adamw_16, sgd, sgd_momentum")));
  }
}

TEST(ValidateWorkload, TakesWhatIsSound) {
  for (const Workload& w :
       {workload(Phase::training, 1), workload(Phase::prefill, 8), workload(Phase::prefill, 8, 7),
        workload(Phase::decode, 8, 7, 1), workload(Phase::decode, 8, 0, 8)}) {
    EXPECT_NO_THROW(validate_workload(w));
  }
}

struct Fault {
  Workload workload;
  const char* message;
};

TEST(ValidateWorkload, NamesTheFieldItsValueAndWhatIsAllowed) {
  const std::vector<Fault> faults = {
      {workload(Phase::training, 0), "seq_len=0 must be at least 1"},
      {workload(Phase::training, std::int64_t{1} << 43), "must be at most 4398046511104 tokens"},
      {workload(Phase::training, 8, 4), "cached=4 must be 0 in training"},
      {workload(Phase::training, 8, 0, 1), "new_tokens=1 must be 0 in training"},
      {workload(Phase::prefill, 8, 8), "cached=8 must be at least 0 and below seq_len=8"},
      {workload(Phase::prefill, 8, -1), "cached=-1"},
      {workload(Phase::prefill, 8, 0, 2), "new_tokens=2 must be 0 in prefill"},
      {workload(Phase::decode, 8, 8), "new_tokens=0 must be at least 1 in decode"},
      {workload(Phase::decode, 8, 8, 2), "seq_len=8 must be cached + new_tokens=8+2 in decode"},
      {workload(Phase::decode, 1, std::numeric_limits<std::int64_t>::max(),
                std::numeric_limits<std::int64_t>::max()),
       "seq_len=1 must be cached + new_tokens"},
  };
  for (const Fault& fault : faults) {
    EXPECT_THAT(message_of([&] { validate_workload(fault.workload); }), HasSubstr(fault.message));
  }
  for (const auto& [phase, dropout, message] : std::vector<std::tuple<Phase, double, const char*>>{
           {Phase::training, 1, "attention_dropout=1 is not a probability below 1; use, for example, 0.1"},
           {Phase::training, -0.1, "attention_dropout=-0.1 is not a probability below 1"},
           {Phase::prefill, 0.1, "attention_dropout=0.1 is of training; prefill drops nothing"}}) {
    Workload dropping = workload(phase, 8);
    dropping.attention_dropout = dropout;
    EXPECT_THAT(message_of([&] { validate_workload(dropping); }), HasSubstr(message));
  }
}

TEST(ValidateWorkload, DocumentsFillTheSequencesOfATraining) {
  const auto with = [](Workload w, std::vector<std::int64_t> cu_seqlens) {
    w.cu_seqlens = std::move(cu_seqlens);
    return w;
  };
  const Workload training = workload(Phase::training, 8);
  EXPECT_NO_THROW(validate_workload(with(training, {0, 8})));
  EXPECT_NO_THROW(validate_workload(with(training, {0, 1, 5, 8})));
  using Ends = std::vector<std::int64_t>;
  for (const Ends& ends : {Ends{0}, Ends{1, 8}, Ends{0, 7}, Ends{0, 9}, Ends{0, 3, 3, 8}, Ends{0, 5, 3, 8}}) {
    EXPECT_THAT(
        message_of([&] { validate_workload(with(training, ends)); }),
        HasSubstr(str("cu_seqlens=", join(ends, "/"), " must begin with 0, ascend, and end with seq_len=8")));
  }
  EXPECT_THAT(message_of([&] {
                validate_workload(with(workload(Phase::prefill, 8), {0, 8}));
              }),
              HasSubstr("cu_seqlens=0/8 are documents of training; prefill has one sequence"));
}

TEST(Workload, RefusesDocumentsThatAreNotOfEachSequence) {
  Workload w = workload(Phase::training, 8);
  w.global_batch = 2, w.cu_seqlens_of_sequence = {{0, 8}};
  EXPECT_THAT(
      message_of([&] { validate_workload(w); }),
      HasSubstr("cu_seqlens_of_sequence has 1 lists for the global_batch=2 sequences; give one for each"));
  w.cu_seqlens_of_sequence = {{0, 8}, {0, 3, 7}};
  EXPECT_THAT(message_of([&] { validate_workload(w); }), HasSubstr("cu_seqlens=0/3/7 must begin with 0"));
  w.cu_seqlens_of_sequence[1].back() = 8, w.cu_seqlens = {0, 8};
  EXPECT_THAT(message_of([&] { validate_workload(w); }), HasSubstr("are both given; give one"));
}

TEST(DocumentEnd, IsThatOfTheRowsDocument) {
  Workload w = workload(Phase::training, 8);
  EXPECT_EQ(document_end(w, 0, 3), 8);
  w.cu_seqlens = {0, 1, 5, 8};
  std::vector<std::int64_t> ends;
  for (std::int64_t row = 0; row < 8; ++row) ends.push_back(document_end(w, 0, row));
  EXPECT_THAT(ends, ::testing::ElementsAre(1, 5, 5, 5, 5, 8, 8, 8));
  w.cu_seqlens.clear(), w.cu_seqlens_of_sequence = {{0, 8}, {0, 3, 8}};
  EXPECT_EQ(document_end(w, 0, 2), 8);
  EXPECT_EQ(document_end(w, 1, 2), 3);
}

TEST(ValidateWorkload, NamesAllFaultsAtOnce) {
  Workload w = workload(Phase::training, 8);
  w.global_batch = 0, w.dtype = DType::i32, w.kv_dtype = DType::i64, w.gradient_dtype = DType::i32;
  w.optimizer.states = 9, w.optimizer.state_dtype = DType::i32;
  w.expert_imbalance = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(
      message_of([&] { validate_workload(w); }),
      AllOf(HasSubstr("global_batch=0"), HasSubstr("; dtype=i32 is not a floating type"),
            HasSubstr("kv_dtype=i64"), HasSubstr("gradient_dtype=i32"), HasSubstr("optimizer.states=9"),
            HasSubstr("optimizer.state_dtype=i32"), HasSubstr("expert_imbalance=nan")));
}

TEST(HashOfAWorkload, EveryFieldCounts) {
  std::vector<Workload> all(13);
  all[1].phase = Phase::decode, all[2].seq_len = 1, all[3].global_batch = 2, all[4].cached = 1;
  all[5].new_tokens = 1, all[6].dtype = DType::f32, all[7].kv_dtype = DType::f32;
  all[8].gradient_dtype = DType::bf16, all[9].optimizer.name = "other", all[10].optimizer.states = 1;
  all[11].optimizer.state_dtype = DType::bf16, all[12].optimizer.offload = true;
  all.emplace_back().expert_imbalance = 1.5;
  all.emplace_back().cu_seqlens = {0, 8};
  all.emplace_back().attention_dropout = 0.1;
  std::set<Digest> digests;
  for (const Workload& w : all) {
    Hasher hasher;
    digests.insert(hash(hasher, w).digest());
  }
  EXPECT_EQ(digests.size(), all.size());
}

}  // namespace
}  // namespace cp
