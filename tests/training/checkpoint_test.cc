#include "traces/checkpoints/checkpoint.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/index.h"
#include "shared/base/text.h"
#include "tests/support/messages.h"
#include "traces/read_text.h"

namespace cp {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Checkpoints : public ::testing::Test {
 protected:
  Checkpoints()
      : folder_(fs::path(::testing::TempDir()) /
                ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
    fs::remove_all(folder_);
    facts_.step = 7, facts_.model = "m", facts_.text = "t", facts_.states = state_names(2);
  }
  ~Checkpoints() override { fs::remove_all(folder_); }

  std::string path(std::int64_t step) const { return (folder_ / checkpoint_name(step)).string(); }

  static float value(int role, std::int64_t row, std::int64_t column) {
    return static_cast<float>(role) + 0.5F * static_cast<float>(row) - 0.125F * static_cast<float>(column);
  }

  // Rank 0 writes the first columns of the matrix, rank 1 the others and the vector.
  void write(const std::string& to, bool all = true) {
    CheckpointWriter::begin(to, facts_, names_, "{}");
    for (int rank = 0; rank < 2; ++rank) {
      CheckpointWriter writer(to, facts_, names_);
      for (int role = 0; role < 3; ++role) {
        const TensorBlock matrix{"matrix", 0, 3, rank == 0 ? 2 : 3, 0, rank == 0 ? 0 : 2},
            vector{"vector", 0, 1, 4, 0, 0};
        // In two stretches, the first of which ends within a row.
        put(writer, role, {matrix, 0, 3}), put(writer, role, {matrix, 3, 3 * matrix.columns - 3});
        if (rank == 1 && all) put(writer, role, {vector, 0, 4});
      }
      writer.finish(rank);
    }
    CheckpointWriter::commit(to, facts_, names_, 2);
  }

  static void put(CheckpointWriter& writer, int role, const TensorRun& run) {
    std::vector<float> values;
    for_each_row(run, [&](std::int64_t row, std::int64_t column, std::int64_t, std::int64_t count) {
      for (std::int64_t i = 0; i < count; ++i) values.push_back(value(role, row, column + i));
    });
    writer.write(role, run, std::as_bytes(std::span(values)));
  }

  fs::path folder_;
  CheckpointFacts facts_;
  DiskNames names_{"", {{"matrix", 3, 5}, {"vector", 1, 4}}, {}};
};

TEST_F(Checkpoints, AreReadInOtherPartsThanTheyWereWrittenIn) {
  write(path(7));
  const CheckpointReader reader(path(7), names_);
  EXPECT_EQ(reader.facts().step, 7);
  EXPECT_EQ(reader.torn(0, 1), "");
  const TensorBlock middle{"matrix", 0, 2, 3, 1, 1};
  for (int role = 0; role < 3; ++role) {
    std::vector<double> values(5);
    reader.read(role, {middle, 1, 5}, values);
    EXPECT_THAT(values, ElementsAre(value(role, 1, 2), value(role, 1, 3), value(role, 2, 1),
                                    value(role, 2, 2), value(role, 2, 3)));
  }
}

// The parts of a model that another tool has saved are those of a checkpoint.
TEST_F(Checkpoints, AreModelsForOtherTools) {
  write(path(7));
  const PretrainedReader reader(path(7), names_);
  reader.require();
  std::vector<double> values(4), states(4);
  const TensorBlock vector{"vector", 0, 1, 4, 0, 0};
  reader.read(0, {vector, 0, 4}, values), reader.read(1, {vector, 0, 4}, states);
  EXPECT_THAT(values, ElementsAre(0, -0.125, -0.25, -0.375));
  EXPECT_THAT(states, ElementsAre(0, 0, 0, 0));
  reader.require();
  const auto as_others = [&](const TensorShape& other) {
    return testing::message_of([&] {
      const DiskNames others("", {other}, {});
      CheckpointReader(path(7), others).require();
    });
  };
  EXPECT_THAT(as_others({"matrix", 3, 6}),
              HasSubstr(" has 15 elements of matrix, where the model has 18: it"));
  EXPECT_THAT(as_others({"matrices", 3, 5}),
              HasSubstr(" has no elements of matrices, where the model has 15"));
  EXPECT_THAT(
      testing::message_of([&] {
        const DiskNames others("", {{"matrix", 5, 3}, {"vectors", 1, 4}}, {});
        PretrainedReader(path(7), others).require();
      }),
      HasSubstr(
          "is another model's: matrix is f32 [3, 5], and the model's is [5, 3]; it has no tensor vectors; "
          "the nearest is vector"));
}

// Whatever byte of whatever file changes, and wherever a file ends, it is found.
TEST_F(Checkpoints, ShowEachTornByte) {
  write(path(7));
  const auto finding = [&] {
    try {
      const CheckpointReader reader(path(7), names_);
      return reader.torn(0, 2) + reader.torn(1, 2);
    } catch (const InvalidInput& error) {
      return std::string(error.what());
    }
  };
  ASSERT_EQ(finding(), "");
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "checkpoint.json", "config.json"}) {
    const std::string file = path(7) + "/" + name, whole = read_text_file(file, "test");
    const auto put_back = [&](const std::string& text) { std::ofstream(file, std::ios::binary) << text; };
    for (std::size_t byte = 0; byte < whole.size(); ++byte) {
      std::string torn = whole;
      torn[byte] = static_cast<char>(torn[byte] ^ 1);
      put_back(torn);
      EXPECT_NE(finding(), "") << name << " byte " << byte;
    }
    for (const std::size_t size : {std::size_t{0}, whole.size() / 2, whole.size() - 1}) {
      put_back(whole.substr(0, size));
      EXPECT_NE(finding(), "") << name << " of " << size << " bytes";
    }
    put_back(whole);
  }
  EXPECT_EQ(finding(), "");
}

TEST_F(Checkpoints, AreGivenUpIfAnElementWasNotWritten) {
  EXPECT_THAT(testing::message_of([&] { write(path(7), false); }),
              HasSubstr("of tensor vector 0 elements were written, and it has 4"));
  EXPECT_THAT(checkpoints_in(folder_.string()), ElementsAre());
}

TEST_F(Checkpoints, AreListedNewestFirstAndOldOnesGo) {
  for (const std::int64_t step : {9, 10, 100}) facts_.step = step, write(path(step));
  fs::create_directories(path(200) + ".partial");
  EXPECT_THAT(checkpoints_in(folder_.string()),
              ElementsAre("step-00000100", "step-00000010", "step-00000009"));
  remove_old_checkpoints(folder_.string(), 2, 100);
  EXPECT_THAT(checkpoints_in(folder_.string()), ElementsAre("step-00000100", "step-00000010"));
  EXPECT_FALSE(fs::exists(path(200) + ".partial"));
}

// A later one is torn, or the training would have gone on from it: the one that was just written stays.
TEST_F(Checkpoints, AreKeptWhereLaterOnesAreTorn) {
  for (const std::int64_t step : {9, 10, 100}) facts_.step = step, write(path(step));
  remove_old_checkpoints(folder_.string(), 1, 10);
  EXPECT_THAT(checkpoints_in(folder_.string()), ElementsAre("step-00000100", "step-00000010"));
}

// Headers that others wrote, or nobody.
TEST_F(Checkpoints, RefuseHeadersThatLie) {
  fs::create_directories(folder_);
  const auto finding = [&](const std::string& json) {
    const std::string path = (folder_ / "model.safetensors").string();
    std::string text(8, '\0');
    const std::uint64_t length = json.size();
    std::memcpy(text.data(), &length, sizeof length);
    std::ofstream(path, std::ios::binary) << text << json << std::string(16, 'x');
    return testing::message_of([&] { PretrainedReader(folder_.string(), names_); });
  };
  const auto tensor = [](const char* dtype, const char* shape, const char* offsets) {
    return str(R"({"t":{"dtype":")", dtype, R"(","shape":)", shape, R"(,"data_offsets":)", offsets, "}}");
  };
  EXPECT_THAT(finding(tensor("F32", "[5]", "[0,20]")),
              HasSubstr("tensor t ends at byte 20 of 16; the file is not whole"));
  EXPECT_THAT(finding(tensor("F32", "[2]", "[0,4]")), HasSubstr("tensor t of 8 bytes lies from 0 to 4"));
  EXPECT_THAT(finding(tensor("F8_E4M3", "[2]", "[0,2]")), HasSubstr("has the dtype F8_E4M3; known are F32"));
  EXPECT_THAT(finding(tensor("F32", "[4294967296,4294967296]", "[0,0]")),
              HasSubstr("more than a file holds"));
  EXPECT_THAT(finding(tensor("F32", "[-1]", "[0,0]")), HasSubstr("has a dimension of -1 elements"));
  EXPECT_THAT(finding("{"), HasSubstr("its header is not understood"));
  EXPECT_THAT(finding(R"({"t":3})"), HasSubstr("its header is not understood"));
}

// Experts of two rows and three columns, as gpt-oss has them: transposed, gates and what they multiply in
// turns.
TEST_F(Checkpoints, HoldExpertsTransposed) {
  std::vector<TensorShape> shapes;
  for (const char* expert : {"a.mlp.experts.0.", "a.mlp.experts.1."}) {
    shapes.push_back({std::string(expert) + "gate_proj.weight", 2, 3});
    shapes.push_back({std::string(expert) + "up_proj.weight", 2, 3});
  }
  const DiskNames names("gpt_oss", shapes, {});
  CheckpointWriter::begin(path(7), facts_, names, "{}");
  CheckpointWriter writer(path(7), facts_, names);
  const auto number = [](std::size_t tensor, std::int64_t row, std::int64_t column) {
    return static_cast<float>(100 * tensor) + static_cast<float>(10 * row + column);
  };
  for (std::size_t tensor = 0; tensor < shapes.size(); ++tensor) {
    const TensorBlock whole{shapes[tensor].tensor, 0, 2, 3, 0, 0};
    for (int role = 0; role < 3; ++role) {
      // In three stretches, of which two end within a row.
      for (const auto& [first, count] : {std::pair{0, 2}, {2, 3}, {5, 1}}) {
        std::vector<float> values;
        for (std::int64_t i = first; i < first + count; ++i) values.push_back(number(tensor, i / 3, i % 3));
        writer.write(role, {whole, first, count}, std::as_bytes(std::span(values)));
      }
    }
  }
  writer.finish(0);
  CheckpointWriter::commit(path(7), facts_, names, 1);
  // As one tensor: [experts, columns, gate and up of each row].
  const DiskNames plain("", {{"a.mlp.experts.gate_up_proj", 6, 4}}, {});
  const PretrainedReader disk(path(7), names), other(path(7), plain);
  disk.require();
  std::vector<double> all(24), part(4);
  const TensorBlock block{"a.mlp.experts.gate_up_proj", 0, 6, 4, 0, 0};
  other.read(0, {block, 0, 24}, all);
  EXPECT_THAT(all, ElementsAre(0, 100, 10, 110, 1, 101, 11, 111, 2, 102, 12, 112,  //
                               200, 300, 210, 310, 201, 301, 211, 311, 202, 302, 212, 312));
  // Columns 1 and 2 of the second expert's up, from the second element on.
  const TensorBlock columns{shapes[3].tensor, 0, 2, 2, 0, 1};
  part.resize(3);
  CheckpointReader(path(7), names).read(2, {columns, 1, 3}, part);
  EXPECT_THAT(part, ElementsAre(302, 311, 312));
}

// A recurrence as Nemotron-H has it on disk: gates, values, keys, queries and time steps in one matrix, whose
// rows the model has as queries, keys and values. One key head of one element, two value heads of two.
TEST_F(Checkpoints, HoldRecurrencesInTheOrderOfTheirFamily) {
  Transformer model;
  model.recurrence = Recurrence{RecurrenceRule::decay, 1, 2, 1, 2, 4, true};
  const std::string own = "model.layers.0.linear_attn.", there = "backbone.layers.0.mixer.";
  const std::vector<TensorShape> shapes = {{own + "in_proj_qkv.weight", 6, 2},
                                           {own + "in_proj_z.weight", 4, 2},
                                           {own + "in_proj_dt.weight", 2, 2},
                                           {own + "conv1d.bias", 1, 6}};
  const DiskNames names("nemotron_h", shapes, model);
  CheckpointWriter::begin(path(7), facts_, names, "{}");
  CheckpointWriter writer(path(7), facts_, names);
  for (std::size_t tensor = 0; tensor < shapes.size(); ++tensor) {
    const TensorBlock whole{shapes[tensor].tensor, 0, shapes[tensor].rows, shapes[tensor].columns, 0, 0};
    const std::int64_t numel = shapes[tensor].numel();
    for (int role = 0; role < 3; ++role) {
      // In two stretches, of which one ends within a row.
      for (const auto& [first, count] : {std::pair{std::int64_t{0}, std::int64_t{3}}, {3, numel - 3}}) {
        std::vector<float> values;
        for (std::int64_t i = first; i < first + count; ++i)
          values.push_back(static_cast<float>(100 * tensor) + static_cast<float>(i));
        writer.write(role, {whole, first, count}, std::as_bytes(std::span(values)));
      }
    }
  }
  writer.finish(0);
  CheckpointWriter::commit(path(7), facts_, names, 1);
  const DiskNames plain("", {{there + "in_proj.weight", 12, 2}, {there + "conv1d.bias", 1, 6}}, {});
  const PretrainedReader disk(path(7), names), other(path(7), plain);
  disk.require(), other.require();
  std::vector<double> all(24), biases(6), part(5);
  other.read(0, {{there + "in_proj.weight", 0, 12, 2, 0, 0}, 0, 24}, all);
  EXPECT_THAT(all, ElementsAre(100, 101, 102, 103, 104, 105, 106, 107,  // gates
                               4, 5, 6, 7, 8, 9, 10, 11, 2, 3, 0, 1,    // values, the key, the query
                               200, 201, 202, 203));
  other.read(0, {{there + "conv1d.bias", 0, 1, 6, 0, 0}, 0, 6}, biases);
  EXPECT_THAT(biases, ElementsAre(302, 303, 304, 305, 301, 300));
  // From the second element of the key on, to the first value's last but one.
  const CheckpointReader reader(path(7), names);
  reader.read(2, {{own + "in_proj_qkv.weight", 0, 3, 2, 1, 0}, 1, 5}, part);
  EXPECT_THAT(part, ElementsAre(3, 4, 5, 6, 7));
  reader.read(1, {{own + "conv1d.bias", 0, 1, 5, 0, 1}, 0, 5}, part);
  EXPECT_THAT(part, ElementsAre(301, 302, 303, 304, 305));
}

// A file of another tool, of one f32 tensor with these values.
void write_file(const fs::path& folder, const std::string& tensor, const std::vector<float>& values) {
  fs::create_directories(folder);
  FileLayout layout;
  const std::string header =
      begin_safetensors({{tensor, DType::f32, {static_cast<std::int64_t>(values.size())}, 0}}, {}, layout);
  std::ofstream file(folder / "model.safetensors", std::ios::binary);
  file << header;
  file.write(reinterpret_cast<const char*>(values.data()),
             static_cast<std::streamsize>(values.size() * sizeof(float)));
}

TEST_F(Checkpoints, RefuseWhatPlansDoNotCompute) {
  const auto message = [&](const DiskNames& names) {
    return testing::message_of([&] { PretrainedReader(folder_.string(), names).require(); });
  };
  const DiskNames experts("gpt_oss", {{"a.mlp.experts.0.down_proj.weight", 2, 3}}, {});
  write_file(folder_, "a.mlp.experts.down_proj_blocks", {1});
  EXPECT_THAT(message(experts),
              HasSubstr("has a.mlp.experts.down_proj_blocks: its experts are quantized (MXFP4), "
                        "which is not read; the nearest thing is a folder in bf16"));
  const std::string correction = "mlp.gate.e_score_correction_bias";
  const DiskNames router("", {{correction, 1, 2}}, {});
  write_file(folder_, "a." + correction, {0, 0.5F});
  EXPECT_THAT(message(router),
              HasSubstr("which its router adds to the scores that it chooses experts by, and the model's "
                        "routers add nothing; the nearest thing is a config with topk_method \"noaux_tc\""));
  write_file(folder_, "a." + correction, {0, 0});
  EXPECT_THAT(message(router), HasSubstr("it has no tensor mlp.gate"));  // and that alone
  const DiskNames products("", {{"a.out_proj.weight", 2, 3}}, {});
  write_file(folder_, "a.out_proj.bias", {0, 0.5F});
  EXPECT_THAT(message(products), HasSubstr("has a.out_proj.bias, which the model does not add; the nearest"));
  write_file(folder_, "a.out_proj.bias", {0, 0});
  EXPECT_THAT(message(products), HasSubstr("it has no tensor a.out_proj.weight"));
  write_file(folder_, "b.out_proj.bias", {0.5F});  // of a part that the model has not, such as its pictures
  EXPECT_THAT(message(products), HasSubstr("it has no tensor a.out_proj.weight"));
}

TEST_F(Checkpoints, SayWhichFolderHoldsNoModel) {
  EXPECT_THAT(testing::message_of([&] { PretrainedReader("/nowhere", names_); }),
              HasSubstr("/nowhere has neither model.safetensors nor model.safetensors.index.json"));
}

}  // namespace
}  // namespace cp
