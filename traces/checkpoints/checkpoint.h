// Checkpoints of a training: folders that all ranks write together, and that a training on any layout and any
// number of ranks goes on from.
//
//   runs/step-00000200/
//     model.safetensors       f32 parameters, whole tensors by Hugging Face's names
//     optimizer.safetensors   the optimizer's states: "exp_avg.<tensor>", "exp_avg_sq.<tensor>"; of tensors
//                             that are not trained (UnitTensors::trained) there are none
//     config.json             the model
//     checkpoint.json         the step, the seed, the text; and sums of all tensors
//
// Files hold whole tensors, whatever the layout. A rank writes the elements that it owns at their places, and
// reads those that it is to own from theirs. So a layout is left and another one entered without any plan of
// redistribution, in the memory of one row of a tensor beside the shards themselves; but all machines must
// see the folder.
//
// A checkpoint is written under a name that ends in ".partial", synchronised, and renamed when it is
// complete. What was torn, by whatever, is found: each tensor has a sum over (place, bits) of its elements,
// which does not depend on who wrote which, and headers and checkpoint.json have checksums.
//
// Writing, on all ranks, with a barrier between the lines:
//   CheckpointWriter::begin(folder, facts, names, config)    on rank 0 alone
//   CheckpointWriter writer(folder, facts, names); writer.write(...), ...; writer.finish(rank)
//   CheckpointWriter::commit(folder, facts, names, ranks)    on rank 0 alone
//
// Tensors have the names of the model's family on disk (disk_names.h); who writes and reads has the model's.
// The names must outlive writers and readers.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/dtype.h"
#include "shared/transformer/tensor_places.h"
#include "traces/checkpoints/checkpoint_phase.h"
#include "traces/checkpoints/disk_names.h"
#include "traces/checkpoints/safetensors.h"

namespace cp {

// What a checkpoint says of the training. Two trainings with the same model, optimizer and text go on from
// one another's.
struct CheckpointFacts {
  std::int64_t step = 0;  // updates that have been made
  std::uint64_t seed = 0;
  std::string model;                // digest of what the model computes
  std::string text;                 // digest of the tokens
  std::string layout;               // that wrote it, for people
  std::vector<std::string> states;  // names of the optimizer's states: "exp_avg", "exp_avg_sq"
  DType state_dtype = DType::f32;
};

// The names of an optimizer's states, as PyTorch's have them: "exp_avg" and "exp_avg_sq", or
// "momentum_buffer".
std::vector<std::string> state_names(int states);

class CheckpointWriter {
 public:
  // Makes the partial folder, and in it the files with their headers. One that is there already is removed.
  static void begin(const std::string& folder, const CheckpointFacts& facts, const DiskNames& names,
                    const std::string& config, const ReachedPhase& reached = {});

  CheckpointWriter(const std::string& folder, const CheckpointFacts& facts, const DiskNames& names,
                   ReachedPhase reached = {});
  // Writes the elements of a run in a role (0 the parameter, 1 and above the states), which lie one after the
  // other in memory: f32, or the states' dtype.
  void write(int role, const TensorRun& run, std::span<const std::byte> elements);
  // Synchronises what was written, and leaves the sums for commit().
  void finish(std::int64_t rank);

  // Puts the sums of ranks 0 .. ranks - 1 together and gives the folder its name. Throws InvalidInput if not
  // every element has been written exactly once.
  static void commit(const std::string& folder, const CheckpointFacts& facts, const DiskNames& names,
                     std::int64_t ranks, const ReachedPhase& reached = {});

 private:
  struct Sum {
    std::uint64_t sum = 0;
    std::int64_t count = 0;
  };

  const DiskNames& names_;
  std::string partial_;
  FileLayout layouts_[2];  // of parameters and of states
  std::vector<DataFile> files_;
  std::map<std::string, std::pair<int, const FileTensor*>, std::less<>> tensors_;  // file and place
  std::map<std::string, Sum, std::less<>> sums_;
  std::vector<std::string> states_;
  ReachedPhase reached_;
};

class CheckpointReader {
 public:
  // Throws InvalidInput if the folder's files are not whole, or not those that checkpoint.json describes.
  CheckpointReader(std::string folder, const DiskNames& names);

  const std::string& folder() const { return folder_; }
  const CheckpointFacts& facts() const { return facts_; }
  // Throws InvalidInput if a tensor of the model is missing or has another number of elements: the version
  // that wrote the checkpoint may have had other names for a family's tensors. For checkpoints of the same
  // model.
  void require() const;
  // Compares the sums of every `parts`-th tensor, from the part-th on: ranks share the work. Returns what is
  // wrong, in words, or nothing.
  std::string torn(std::int64_t part, std::int64_t parts) const;
  // Values of StepBuffers. Throws InvalidInput for a tensor or a state that the checkpoint lacks.
  void read(int role, const TensorRun& run, std::span<double> values) const;

 private:
  std::string folder_;
  const DiskNames* names_;
  CheckpointFacts facts_;
  std::vector<DataFile> files_;
  std::vector<FileLayout> layouts_;
  std::map<std::string, std::pair<int, const FileTensor*>, std::less<>> tensors_;
  std::map<std::string, std::uint64_t, std::less<>> sums_;
};

// The names of complete checkpoints in the folder, newest first; none if there is no such folder.
std::vector<std::string> checkpoints_in(const std::string& folder);
// "step-00000200"
std::string checkpoint_name(std::int64_t step);
// Removes what was left half written, and of the checkpoints up to that of `step`, which is whole, all but
// the newest `keep`. Later ones stay, and do not count: the training did not go on from them, since they are
// torn.
void remove_old_checkpoints(const std::string& folder, std::int64_t keep, std::int64_t step,
                            const ReachedPhase& reached = {});

// Reads parameters by their names on disk from a folder that holds model.safetensors, or several files with
// model.safetensors.index.json. Any floating dtype; states are zeros.
class PretrainedReader {
 public:
  PretrainedReader(const std::string& folder, const DiskNames& names);
  // Throws InvalidInput if a tensor of the model is missing or has another shape, for all of them; or if
  // there is a bias that the model does not add, unless it is 0.
  void require() const;
  void read(int role, const TensorRun& run, std::span<double> values) const;

 private:
  std::string folder_;
  const DiskNames& names_;
  std::vector<DataFile> files_;
  std::vector<FileLayout> layouts_;
  std::map<std::string, std::pair<int, const FileTensor*>, std::less<>> tensors_;
};

}  // namespace cp
