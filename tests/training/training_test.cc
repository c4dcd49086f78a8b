#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/index.h"
#include "shared/base/text.h"
#include "sim/planner/models/read_model.h"
#include "sim/scenario/training_threads.h"
#include "tests/support/messages.h"
#include "tests/training/curve_tolerance.h"
#include "traces/checkpoints/safetensors.h"

namespace cp::sim {
namespace {

namespace fs = std::filesystem;
using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pointwise;

proto::Train small(const std::string& layout, std::int64_t steps = 6) {
  proto::Train train;
  train.set_model("llama-3.1-8b"), train.set_scaled_down(true), train.set_layout(layout);
  // Not the pages, which anybody may change: with other words other scores of experts come close.
  train.add_text(CP_SOURCE_DIR "/LICENSE");
  train.set_seq_len(24), train.set_global_batch(4), train.set_steps(steps);
  train.set_learning_rate(testing::kCurveLearningRate), train.set_warmup_steps(testing::kCurveWarmup);
  return train;
}

std::vector<double> losses_of(const proto::Train& train) {
  return train_on_threads(make_train_job(train), {}).result.losses;
}

// Of the same training on one device.
void expect_near(const std::vector<double>& losses, const std::vector<double>& expected,
                 const std::string& what) {
  ASSERT_EQ(losses.size(), expected.size()) << what;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const double allowed = testing::curve_tolerance(static_cast<std::int64_t>(i) + 1);
    ASSERT_NEAR(losses[i], expected[i], allowed * expected[i]) << what << ", step " << i + 1;
  }
}

// A whole training: sums that a step forgets, counts twice or takes of another rank move its curve a thousand
// times as far as roundings do.
constexpr std::int64_t kWholeTraining = 200;

TEST(Training, OfEveryKindOfLayoutIsThatOfOneDevice) {
  const std::vector<double> one = losses_of(small("tp=1", kWholeTraining));
  EXPECT_LT(one.back(), one.front() - 1);  // it learns
  for (const char* layout :
       {"dp_shard=2", "dp_shard=2,dp_replicate=2,zero=1", "cp=2,strategy=ring", "cp=2,strategy=ulysses",
        "cp=2,strategy=all_gather,balance=head_tail", "cp=2,strategy=pass_q", "tp=2",
        "tp=4,dp_shard=2,zero=2", "pp=2", "pp=2,tp=2,cp=2,strategy=ring"})
    expect_near(losses_of(small(layout, kWholeTraining)), one, layout);
}

// Of pipelines with fewer micro-batches than stages, as many, and more, of one stage a rank and of two.
TEST(Training, OfPipelinesIsThatOfOneDevice) {
  constexpr std::int64_t kSteps = 4;
  const std::vector<double> one = losses_of(small("tp=1", kSteps));
  for (const char* layout :
       {"pp=4,micro_batch=2", "pp=4", "pp=2", "pp=2,virtual_stages=2,micro_batch=2", "pp=2,virtual_stages=2",
        "pp=2,virtual_stages=2,dp_shard=2,recompute=full", "pp=2,virtual_stages=2,activations=host"})
    expect_near(losses_of(small(layout, kSteps)), one, layout);
}

// With a choice of experts curves part where two scores are as good as equal: a token then goes another way.
// So a few steps are made with the model's own choice, and a whole training where each token goes to all
// experts.
TEST(Training, OfExpertsIsThatOfOneDevice) {
  for (const std::int64_t steps : {std::int64_t{3}, kWholeTraining}) {
    const auto experts = [&](const char* layout) {
      proto::Train train = small(layout, steps);
      train.set_model("mixtral-8x7b");
      TrainJob job = make_train_job(train);
      if (steps == kWholeTraining) {
        job.request.model.experts->top_k = job.request.model.experts->count;
        job.request.workload.expert_imbalance = 1;  // all experts have as many tokens
      }
      return train_on_threads(job, {}).result.losses;
    };
    const std::vector<double> one = experts("tp=1");
    for (const char* layout : {"dp_shard=2,ep=2", "tp=2,dp_shard=2,ep=2"})
      expect_near(experts(layout), one, layout);
  }
}

// Paragraphs of the text, which end anywhere in a sequence, in each of it elsewhere.
proto::Train of_paragraphs(const std::string& layout, std::int64_t steps) {
  proto::Train train = small(layout, steps);
  train.set_seq_len(100), train.set_global_batch(8), train.set_documents("blank_line");
  return train;
}

TEST(Training, OfDocumentsIsThatOfOneDevice) {
  constexpr std::int64_t kSteps = 6;
  const std::vector<double> one = losses_of(of_paragraphs("tp=1", kSteps));
  for (const char* layout :
       {"dp_shard=2,micro_batch=2", "cp=2,strategy=ring,balance=head_tail", "tp=2,micro_batch=4",
        "dp_shard=2,cp=2,strategy=need_only", "pp=2,cp=2,strategy=ring"})
    expect_near(losses_of(of_paragraphs(layout, kSteps)), one, layout);
  proto::Train all_as_one = of_paragraphs("tp=1", kSteps);
  all_as_one.clear_documents();
  // A hundred times what roundings could do: rows of other documents are not seen.
  const double apart = 100 * testing::curve_tolerance(kSteps) * one.back();
  EXPECT_GT(std::abs(losses_of(all_as_one).back() - one.back()), apart);
}

// With dropout, whose weights are those of one device in each step.
TEST(Training, ThatDropsWeightsIsThatOfOneDevice) {
  const auto dropping = [](const char* layout) {
    proto::Train train = small(layout, 40);
    train.set_attention_dropout(0.2);
    return train;
  };
  const std::vector<double> one = losses_of(dropping("tp=1")), none = losses_of(small("tp=1", 40));
  EXPECT_GT(std::abs(one.back() - none.back()), 100 * testing::curve_tolerance(40) * none.back());
  for (const char* layout : {"dp_shard=2,micro_batch=2", "tp=2", "cp=2,strategy=ring,balance=head_tail",
                             "pp=2,virtual_stages=2,cp=2,strategy=ulysses", "dp_shard=2,recompute=full"})
    expect_near(losses_of(dropping(layout)), one, layout);
}

// Parameters that do not move are evaluated as without dropout, before steps and behind them.
TEST(Training, EvaluatesWithoutDropout) {
  const auto run = [](double dropout) {
    proto::Train train = small("cp=2,strategy=ring", 2);
    train.set_learning_rate(1e-30), train.set_warmup_steps(0), train.set_weight_decay(0);
    train.set_evaluate_every(1), train.set_attention_dropout(dropout);
    return train_on_threads(make_train_job(train), {}).result;
  };
  const TrainingResult without = run(0), with = run(0.5);
  ASSERT_TRUE(without.evaluation && with.evaluation);
  EXPECT_EQ(*with.evaluation, *without.evaluation);
  EXPECT_NE(with.losses, without.losses);
}

TEST(Training, IsTheSameBitForBitWhenItRunsAgain) {
  const proto::Train train = small("dp_shard=2,cp=2,strategy=ring");
  EXPECT_EQ(losses_of(train), losses_of(train));
}

class Resumed : public ::testing::Test {
 protected:
  Resumed()
      : folder_(fs::path(::testing::TempDir()) /
                ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
    fs::remove_all(folder_);
  }
  ~Resumed() override { fs::remove_all(folder_); }

  proto::Train saved(const std::string& layout, std::int64_t steps) const {
    proto::Train train = small(layout);
    train.set_save(folder_.string()), train.set_save_every(3);
    train.set_steps(6);
    stop_behind_ = steps;
    return train;
  }

  // Stopped behind stop_behind_ as by a signal, which makes a checkpoint.
  std::vector<double> run(const proto::Train& train) const {
    TrainingOptions options;
    std::atomic<std::int64_t> seen = 0;
    events_.clear();
    options.on_event = [&](const TrainingEvent& event) {
      events_.push_back(event);
      seen = std::max(seen.load(), event.step);
    };
    // Rank 0's, which sees a step behind the question of it.
    options.stops = [&] { return seen + 1 >= stop_behind_; };
    return train_on_threads(make_train_job(train), options).result.losses;
  }

  static double evaluation_of(const std::vector<TrainingEvent>& events) {
    for (const TrainingEvent& event : events) {
      if (event.kind == TrainingEvent::Kind::evaluated) return event.loss;
    }
    return 0;
  }

  fs::path folder_;
  mutable std::int64_t stop_behind_ = 0;
  mutable std::vector<TrainingEvent> events_;
};

TEST_F(Resumed, OnAnyLayoutGoesOnAsIfNothingHadHappened) {
  const std::vector<double> whole = losses_of(small("dp_shard=2,cp=2,strategy=ring"));
  for (const char* layout :
       {"dp_shard=2,cp=2,strategy=ring", "tp=2,cp=2,strategy=ring", "tp=1", "pp=2,virtual_stages=2,tp=2",
        "tp=8", "dp_shard=2,zero=1", "dp_shard=4,zero=2", "dp_shard=4,bucket=3,threshold=100"}) {
    fs::remove_all(folder_);
    std::vector<double> first = run(saved("dp_shard=2,cp=2,strategy=ring", 4));
    ASSERT_EQ(first.size(), 4U);
    const std::vector<double> rest = run(saved(layout, 100));
    first.insert(first.end(), rest.begin(), rest.end());
    expect_near(first, whole, layout);
    EXPECT_THAT(events_.front().text, HasSubstr("step-00000004, written by "));
  }
}

// Of what several ranks own, small tensors among it, one rank writes each element, and of buckets each its
// part.
TEST_F(Resumed, FromBucketsAndSmallTensors) {
  const std::vector<double> whole = losses_of(small("tp=1"));
  std::vector<double> losses = run(saved("dp_shard=2,dp_replicate=2,bucket=3,threshold=100", 4));
  const std::vector<double> rest = run(saved("tp=1", 100));
  losses.insert(losses.end(), rest.begin(), rest.end());
  expect_near(losses, whole, "buckets and small tensors");
}

// Whatever dtype parameters and states have, and wherever they are.
TEST_F(Resumed, OnTheSameLayoutIsTheSameBitForBit) {
  for (const char* optimizer : {"adamw", "adamw_16", "adamw:offload", "sgd_momentum", "sgd"}) {
    for (const proto::DType dtype : {proto::f32, proto::bf16}) {
      fs::remove_all(folder_);
      const auto with = [&](proto::Train train) {
        train.set_optimizer(optimizer), train.set_dtype(dtype);
        return train;
      };
      const std::vector<double> whole = losses_of(with(small("tp=2,dp_shard=2")));
      std::vector<double> losses = run(with(saved("tp=2,dp_shard=2", 2)));
      const std::vector<double> rest = run(with(saved("tp=2,dp_shard=2", 100)));
      losses.insert(losses.end(), rest.begin(), rest.end());
      EXPECT_EQ(losses, whole) << optimizer;
    }
  }
}

TEST_F(Resumed, WithItsDocuments) {
  const auto with = [](proto::Train train) {
    train.set_seq_len(100), train.set_documents("blank_line");
    return train;
  };
  const char* const layout = "dp_shard=2,cp=2,strategy=ring";
  const std::vector<double> whole = losses_of(with(small(layout)));
  std::vector<double> losses = run(with(saved(layout, 3)));
  ASSERT_EQ(losses.size(), 3U);
  const std::vector<double> rest = run(with(saved(layout, 100)));
  losses.insert(losses.end(), rest.begin(), rest.end());
  EXPECT_EQ(losses, whole);
}

// What a checkpoint says of the model is the model: another training begins where it ended.
TEST_F(Resumed, AsAModelOfAnotherTraining) {
  for (const char* model : {"llama-3.1-8b", "qwen3-8b", "mixtral-8x7b", "phi-4", "gemma-3-27b", "smollm3-3b",
                            "gpt-oss-20b", "nemotron-h-8b", "qwen3-next-80b-a3b"}) {
    fs::remove_all(folder_);
    proto::Train first = saved("tp=2", 100);
    first.set_model(model);
    run(first);
    const double evaluation = evaluation_of(events_);
    ASSERT_GT(evaluation, 0);
    proto::Train second = small("dp_shard=2");
    second.set_scaled_down(false), second.set_model((folder_ / "step-00000006").string());
    second.set_init_from(second.model()), second.set_steps(1), second.set_learning_rate(0);
    second.set_weight_decay(0);
    run(second);
    EXPECT_NEAR(evaluation_of(events_), evaluation, 1e-5 * evaluation) << model;
  }
}

// Values of all of a file's tensors that end like this, in the order of their names.
std::map<std::string, std::vector<float>> tensors_like(const fs::path& path, const std::string& end) {
  const DataFile file(path.string(), DataFile::Mode::read);
  const FileLayout layout = read_safetensors_header(file);
  std::map<std::string, std::vector<float>> found;
  for (const FileTensor& tensor : layout.tensors) {
    if (!tensor.name.ends_with(end)) continue;
    std::vector<float>& values = found[tensor.name];
    values.resize(idx(tensor.numel()));
    file.read(layout.data + tensor.offset, std::as_writable_bytes(std::span(values)));
  }
  return found;
}

// What routers add to scores begins as 0, or as files have it; no step moves it, and checkpoints have it, for
// trainings on other layouts, too. Corrections are far apart, so that no choice hangs on a rounding.
TEST_F(Resumed, WithCorrectionsOfScoresAsTheyWere) {
  const std::string end = "e_score_correction_bias";
  const auto with = [](proto::Train train) {
    train.set_model("deepseek-v3");
    return train;
  };
  run(with(saved("tp=2,dp_shard=2", 100)));
  const fs::path first = folder_ / "step-00000006" / "model.safetensors", begin = folder_ / "begin";
  std::map<std::string, std::vector<float>> corrections = tensors_like(first, end);
  ASSERT_FALSE(corrections.empty());
  EXPECT_TRUE(tensors_like(first.parent_path() / "optimizer.safetensors", end).empty());
  fs::create_directories(begin);
  fs::copy_file(first, begin / first.filename());
  {
    const DataFile reading(first.string(), DataFile::Mode::read);
    const FileLayout layout = read_safetensors_header(reading);
    DataFile file((begin / first.filename()).string(), DataFile::Mode::write);
    for (const FileTensor& tensor : layout.tensors) {
      const auto found = corrections.find(tensor.name);
      if (found == corrections.end()) continue;
      for (std::size_t i = 0; i < found->second.size(); ++i) {
        EXPECT_EQ(found->second[i], 0) << tensor.name;
        found->second[i] = (i % 2 == 0 ? 0.125F : -0.25F) * static_cast<float>(i + 1);
      }
      file.write(layout.data + tensor.offset, std::as_bytes(std::span(found->second)));
    }
  }
  const auto continued = [&](const char* layout, std::int64_t steps) {
    proto::Train train = with(saved(layout, steps));
    train.set_save((folder_ / "continued").string()), train.set_init_from(begin.string());
    return run(train);
  };
  proto::Train whole = with(small("tp=1"));
  whole.set_init_from(begin.string());
  std::vector<double> losses = continued("dp_shard=2,ep=2,cp=2,strategy=ring", 4);
  const std::vector<double> rest = continued("pp=2,tp=2", 100);
  losses.insert(losses.end(), rest.begin(), rest.end());
  expect_near(losses, losses_of(whole), "with corrections");
  for (const char* step : {"step-00000004", "step-00000006"})
    EXPECT_EQ(tensors_like(folder_ / "continued" / step / "model.safetensors", end), corrections) << step;
}

// Each step moves a correction by the rate, up or down, or not at all where the expert's load is the mean;
// all begin as 0, and are the same on every layout. They may come back to 0, so each step is looked at.
TEST_F(Resumed, WithCorrectionsThatMove) {
  constexpr float kRate = 0.125;
  constexpr int kSteps = 6;
  using Corrections = std::map<std::string, std::vector<float>>;
  std::vector<Corrections> of_one_device;
  for (const char* layout : {"tp=1", "dp_shard=2,ep=2,cp=2,strategy=ring", "pp=2,tp=2"}) {
    fs::remove_all(folder_);
    proto::Train train = saved(layout, 100);
    train.set_model("deepseek-v3"), train.set_router_bias_update_rate(kRate);
    train.set_save_every(1), train.set_keep(kSteps);
    run(train);
    std::vector<Corrections> behind_step;
    for (int step = 1; step <= kSteps; ++step)
      behind_step.push_back(
          tensors_like(folder_ / str("step-0000000", step) / "model.safetensors", "e_score_correction_bias"));
    if (of_one_device.empty()) of_one_device = behind_step;
    EXPECT_EQ(behind_step, of_one_device) << layout;
  }
  ASSERT_FALSE(of_one_device.front().empty());
  for (const auto& [name, values] : of_one_device.front()) {
    std::vector<float> before(values.size(), 0);
    bool moved = false;
    for (const Corrections& behind : of_one_device) {
      const std::vector<float>& now = behind.at(name);
      for (std::size_t expert = 0; expert < now.size(); ++expert) {
        const float step = now[expert] - before[expert];
        EXPECT_TRUE(step == kRate || step == 0 || step == -kRate) << name << ": " << step;
        moved = moved || step != 0;
      }
      before = now;
    }
    EXPECT_TRUE(moved) << name;
  }
}

TEST_F(Resumed, TakesTheOneBeforeATornCheckpoint) {
  run(saved("dp_shard=2", 5));  // saves behind 3 and 5
  fs::resize_file(folder_ / "step-00000005" / "optimizer.safetensors", 100);
  const std::vector<double> rest = run(saved("dp_shard=2", 100));
  EXPECT_EQ(rest.size(), 3U);
  EXPECT_EQ(events_.front().kind, TrainingEvent::Kind::refused);
  EXPECT_THAT(events_.front().text,
              HasSubstr("step-00000005/optimizer.safetensors is no whole safetensors file"));
}

TEST_F(Resumed, RefusesACheckpointOfAnotherModel) {
  run(saved("dp_shard=2", 3));
  proto::Train other = saved("dp_shard=2", 100);
  other.set_model("qwen3-8b");
  EXPECT_THAT(testing::message_of([&] { run(other); }), HasSubstr("none of the checkpoints in"));
  EXPECT_THAT(events_.front().text, HasSubstr("it is of another model; use another folder to save in"));
}

// A tokenizer of five tokens: two bytes, a merge of them, a byte that begins others, and one for an end.
std::string tiny_tokenizer() {
  std::string path = ::testing::TempDir() + "cp_tiny_tokenizer.json";
  std::ofstream(path)
      << R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "Ġ": 3}, "merges": ["a b"]},
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
    "added_tokens": [{"id": 300, "content": "<end>", "special": true, "normalized": false}]})";
  return path;
}

TEST(TrainJob, TakesTheTokensOfATokenizer) {
  const std::string text = ::testing::TempDir() + "cp_tiny_text.txt";
  std::ofstream(text) << "ab ba<end>a";
  proto::Train train = small("tp=1");
  train.set_tokenizer(tiny_tokenizer()), train.set_seq_len(5), train.set_global_batch(1);
  train.set_evaluation(0), train.clear_text(), train.add_text(text);
  const TrainJob job = make_train_job(train);
  EXPECT_EQ(job.request.model.vocab, 301) << "a model in small has the tokenizer's vocabulary";
  EXPECT_THAT(job.windows->training_batch(1).tokens, ElementsAre(2, 3, 1, 0, 300));
}

// Other tools read the config of a checkpoint: what was made in small has to be in it.
TEST(TrainJob, WritesWhatWasMadeInSmall) {
  for (const char* preset : {"gemma-3-27b", "deepseek-v3", "gpt-oss-20b", "nemotron-h-8b",
                             "nemotron-3-nano-30b-a3b", "qwen3-next-80b-a3b", "lfm2-2.6b", "lfm2-8b-a1b"}) {
    SCOPED_TRACE(preset);
    proto::Train train = small("tp=1");
    train.set_model(preset);
    const TrainJob job = make_train_job(train);
    const Transformer &made = job.request.model,
                      written = read_model(job.config, "config.json", preset).model;
    EXPECT_EQ(written.head_dim, made.head_dim);
    EXPECT_EQ(written.latent, made.latent);
    EXPECT_EQ(written.recurrence, made.recurrence);
    EXPECT_EQ(written.convolution, made.convolution);
    // Where all layers have experts, nothing reads that of others.
    if (made.has(Mlp::dense)) {
      EXPECT_EQ(written.intermediate, made.intermediate);
    }
    EXPECT_EQ(written.kinds, made.kinds);
    EXPECT_EQ(written.order, made.order);
    EXPECT_EQ(written.numerics.router, made.numerics.router);
    EXPECT_EQ(written.numerics.rotary, made.numerics.rotary);
    EXPECT_EQ(written.numerics.window_rotary, made.numerics.window_rotary);
    EXPECT_NEAR(written.numerics.score_scale, made.numerics.score_scale, 1e-15);
  }
}

// A config that plans leave a part out of, which results depend on, is not trained as another one.
TEST(TrainJob, RefusesModelsThatAreNotComputed) {
  const std::string path = ::testing::TempDir() + "cp_dynamic_rope.json";
  std::ofstream(path)
      << R"({"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 61,
    "intermediate_size": 40, "num_attention_heads": 4, "rope_scaling": {"type": "dynamic", "factor": 2.0}})";
  proto::Train train = small("tp=1");
  train.set_model(path);
  EXPECT_THAT(testing::message_of([&] { make_train_job(train); }),
              HasSubstr("rope_type \"dynamic\" of rotary positions is not described"));
}

TEST(TrainJob, RefusesWhatMakesNoSense) {
  const auto message = [](const auto& change) {
    proto::Train train = small("tp=1");
    change(train);
    return testing::message_of([&] { make_train_job(train); });
  };
  EXPECT_THAT(message([](proto::Train& train) { train.set_layout("dp_shard=3"); }), HasSubstr("global"));
  EXPECT_THAT(message([](proto::Train& train) { train.set_beta2(1); }), HasSubstr("beta2 1 is out of range"));
  EXPECT_THAT(message([](proto::Train& train) { train.set_scaled_down(false), train.set_model("nowhere"); }),
              HasSubstr("nowhere"));
  EXPECT_THAT(message([](proto::Train& train) { train.add_text("/nowhere.txt"); }),
              HasSubstr("/nowhere.txt cannot be opened: No such file or directory"));
  EXPECT_THAT(
      message([](proto::Train& train) {
        train.set_documents("blank_line"), train.set_layout("cp=2,strategy=ring,balance=cost");
      }),
      HasSubstr("balance=cost:64 deals rows by the documents, and here each sequence has documents of its "
                "own; use balance=head_tail"));
  EXPECT_THAT(message([](proto::Train& train) { train.set_tokenizer("/nowhere.json"); }),
              HasSubstr("/nowhere.json"));
  EXPECT_THAT(message([](proto::Train& train) { train.set_router_bias_update_rate(0.001); }),
              HasSubstr("router_bias_update_rate 0.001: the routers of llama-3.1-8b add nothing to scores"));
}

}  // namespace
}  // namespace cp::sim
