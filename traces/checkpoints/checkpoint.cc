#include "traces/checkpoints/checkpoint.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <functional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shared/base/checksum.h"
#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/base/nearest.h"
#include "shared/base/text.h"
#include "shared/kernels/elements.h"
#include "traces/read_text.h"

namespace cp {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModelFile = "model.safetensors";
constexpr const char* kOptimizerFile = "optimizer.safetensors";
constexpr const char* kConfigFile = "config.json";
constexpr const char* kFactsFile = "checkpoint.json";
constexpr const char* kPartial = ".partial";
constexpr const char* kNameBegin = "step-";
constexpr std::string_view kKind = "checkpoint";
constexpr int kFormat = 2;  // 1 had other sums

// Bytes that are read at once where a whole tensor is looked through, and that are written at once. Chosen:
// few calls, and what is summed is still in a core's own cache when it is written.
constexpr std::int64_t kBytesAtOnce = std::int64_t{1} << 18;

std::string partial_of(const std::string& folder) { return folder + kPartial; }

// An element counts for (bits ^ a) * b in its tensor's sum, where a and b are the halves of its place's
// number in a Weyl sequence, of 2^64 divided by the golden ratio, and b is made odd: products of 32 bits
// each, which no 64 bits overflow. Sums do not depend on the order. Bits that change alone always change the
// sum, since b is not zero; several that change, and elements that are moved, but by chance.
template <class Word>
std::uint64_t sum_of_words(std::span<const std::byte> elements, std::int64_t first) {
  constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15;
  const std::uint64_t begin = kStep * (static_cast<std::uint64_t>(first) + 1);
  std::uint64_t sum = 0;
  const std::size_t count = elements.size() / sizeof(Word);
  for (std::size_t i = 0; i < count; ++i) {
    Word word;
    std::memcpy(&word, elements.data() + i * sizeof word, sizeof word);
    const std::uint64_t place = begin + kStep * i;
    const auto a = static_cast<std::uint32_t>(place >> 32), b = static_cast<std::uint32_t>(place) | 1U;
    sum += std::uint64_t{word ^ a} * b;
  }
  return sum;
}

// `first` is the place of the first element in its tensor.
std::uint64_t sum_of(DType dtype, std::span<const std::byte> elements, std::int64_t first) {
  return size_bytes(dtype) == 2 ? sum_of_words<std::uint16_t>(elements, first)
                                : sum_of_words<std::uint32_t>(elements, first);
}

std::string state_tensor(const std::string& state, const std::string& tensor) { return state + "." + tensor; }

std::vector<FileTensor> tensors_of(const DiskNames& names, const CheckpointFacts& facts, bool optimizer) {
  std::vector<FileTensor> tensors;
  if (!optimizer) {
    for (const DiskTensor& of : names.tensors()) tensors.push_back({of.tensor, DType::f32, of.shape, 0});
    return tensors;
  }
  for (const std::string& state : facts.states) {
    for (const DiskTensor& of : names.tensors()) {
      if (of.trained) tensors.push_back({state_tensor(state, of.tensor), facts.state_dtype, of.shape, 0});
    }
  }
  return tensors;
}

std::string header_of(const DiskNames& names, const CheckpointFacts& facts, bool optimizer,
                      FileLayout& layout) {
  // Hugging Face's loaders want to know for which framework a file is.
  return begin_safetensors(tensors_of(names, facts, optimizer), {{"format", "pt"}}, layout);
}

std::string sums_file(std::int64_t rank) { return fmt::format("sums-{}.json", rank); }

std::string hexadecimal(std::uint64_t value) { return fmt::format("{:016x}", value); }

std::string checksum_text(std::string_view text) {
  return hexadecimal(checksum(std::as_bytes(std::span(text))));
}

// Elements of a run, of which the first one is the at-th, and each `at_step` behind the one before; and where
// they are in the tensor on disk.
struct Stretch {
  std::int64_t place = 0, place_step = 1, at = 0, at_step = 1, count = 0;

  bool is_dense() const { return place_step == 1 && at_step == 1; }
};

// for_each_stretch() where rows have another order on disk: stretches of rows that are neighbours in both.
template <class Use>
void for_each_stretch_of_rows(const TensorRun& run, const DiskPlace& of, const Use& use) {
  // Elements are numbered as in a matrix of such rows; those of a vector are rows.
  const std::int64_t width = std::max<std::int64_t>(1, of.row_step);
  Stretch open;
  const auto add = [&](std::int64_t place, std::int64_t at, std::int64_t count) {
    if (open.count > 0 && place == open.place + open.count && at == open.at + open.count) {
      open.count += count;
      return;
    }
    if (open.count > 0) use(open);
    open = {place, 1, at, 1, count};
  };
  for_each_row(run, [&](std::int64_t row, std::int64_t column, std::int64_t at, std::int64_t count) {
    const std::int64_t begin = row * of.row_step + column, end = begin + count;
    for (std::size_t i = 0; i < of.stretches.size(); ++i) {
      const bool is_last = i + 1 == of.stretches.size();
      const std::int64_t first = std::max(begin, of.stretches[i].begin * width),
                         behind = is_last ? end : std::min(end, of.stretches[i + 1].begin * width);
      if (first < behind)
        add(of.stretches[i].first + first - of.stretches[i].begin * width, at + first - begin,
            behind - first);
    }
  });
  if (open.count > 0) use(open);
}

// Calls use(stretch) for parts of the run that are neighbours in the tensor on disk: for all of it, if it has
// the tensor's whole rows, and else for each row. Of matrices that are transposed there, for each column.
template <class Use>
void for_each_stretch(const TensorRun& run, const DiskPlace& of, const Use& use) {
  if (!of.stretches.empty()) return for_each_stretch_of_rows(run, of, use);
  const TensorBlock& block = run.block;
  const auto place = [&of](std::int64_t row, std::int64_t column) {
    return of.first + row * of.row_step + column * of.column_step;
  };
  if (of.column_step == 1 && block.columns == of.row_step)
    return use(Stretch{place(block.first_row, block.first_column) + run.first, 1, 0, 1, run.count});
  if (of.column_step == 1 || block.rows == 1) {
    return for_each_row(run, [&](std::int64_t row, std::int64_t column, std::int64_t at, std::int64_t count) {
      use(Stretch{place(row, column), of.column_step, at, 1, count});
    });
  }
  for (std::int64_t column = 0; column < block.columns; ++column) {
    // Rows of which the run has this column.
    const auto row_from = [&](std::int64_t element) {
      return ceil_div(std::max<std::int64_t>(0, element - column), block.columns);
    };
    const std::int64_t first = row_from(run.first), count = row_from(run.first + run.count) - first;
    if (count > 0)
      use(Stretch{place(block.first_row + first, block.first_column + column), of.row_step,
                  first * block.columns + column - run.first, block.columns, count});
  }
}

void to_doubles(DType dtype, std::span<const std::byte> bytes, std::span<double> values) {
  with_floating_type(dtype, [&]<class T>(std::type_identity<T>) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      T element;
      std::memcpy(&element, bytes.data() + i * sizeof element, sizeof element);
      values[i] = static_cast<double>(load(element));
    }
  });
}

void read_run(const DataFile& file, const FileLayout& layout, const FileTensor& tensor, const DiskPlace& of,
              const TensorRun& run, std::span<double> values) {
  const std::int64_t size = size_bytes(tensor.dtype);
  std::vector<std::byte> bytes;
  std::vector<double> among;  // with the elements between those of a stretch
  for_each_stretch(run, of, [&](const Stretch& stretch) {
    // A part at a time: the values themselves are all the memory that this is to need.
    const std::int64_t most = std::max<std::int64_t>(1, kBytesAtOnce / (size * stretch.place_step));
    for (std::int64_t done = 0; done < stretch.count; done += most) {
      const std::int64_t now = std::min(most, stretch.count - done), all = (now - 1) * stretch.place_step + 1;
      bytes.resize(idx(all * size));
      file.read(layout.data + tensor.offset + (stretch.place + done * stretch.place_step) * size, bytes);
      if (stretch.is_dense()) {
        to_doubles(tensor.dtype, bytes, values.subspan(idx(stretch.at + done), idx(now)));
        continue;
      }
      among.resize(idx(all));
      to_doubles(tensor.dtype, bytes, among);
      for (std::int64_t i = 0; i < now; ++i)
        values[idx(stretch.at + (done + i) * stretch.at_step)] = among[idx(i * stretch.place_step)];
    }
  });
}

std::map<std::string, std::pair<int, const FileTensor*>, std::less<>> by_name(
    const std::vector<FileLayout>& layouts) {
  std::map<std::string, std::pair<int, const FileTensor*>, std::less<>> tensors;
  for (std::size_t file = 0; file < layouts.size(); ++file) {
    for (const FileTensor& tensor : layouts[file].tensors)
      tensors[tensor.name] = {static_cast<int>(file), &tensor};
  }
  return tensors;
}

// Dimensions of one element make no difference: a convolution's weights may have one.
std::vector<std::int64_t> longer_than_one(std::vector<std::int64_t> shape) {
  std::erase(shape, 1);
  return shape;
}

template <class Tensors>
std::string nearest_tensor(const std::string& name, const Tensors& tensors) {
  std::vector<std::string> names;
  names.reserve(tensors.size());
  for (const auto& [known, place] : tensors) names.push_back(known);
  const std::string near = nearest(name, names);
  return near.empty() ? "" : str("; the nearest is ", near);
}

}  // namespace

std::vector<std::string> state_names(int states) {
  if (states == 2) return {"exp_avg", "exp_avg_sq"};
  if (states == 1) return {"momentum_buffer"};
  return {};
}

std::string checkpoint_name(std::int64_t step) { return fmt::format("{}{:08}", kNameBegin, step); }

std::vector<std::string> checkpoints_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kNameBegin) && !name.ends_with(kPartial)) names.push_back(name);
  }
  std::sort(names.rbegin(), names.rend());
  return names;
}

void remove_old_checkpoints(const std::string& folder, std::int64_t keep, std::int64_t step,
                            const ReachedPhase& reached) {
  std::error_code none;
  std::vector<fs::path> partial;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kNameBegin) && name.ends_with(kPartial)) partial.push_back(entry.path());
  }
  for (const fs::path& path : partial) fs::remove_all(path, none);
  std::vector<std::string> names = checkpoints_in(folder);
  std::erase_if(names, [&](const std::string& name) { return name > checkpoint_name(step); });
  for (std::int64_t i = keep; i < std::ssize(names); ++i) {
    // A folder that is removed half way must not look whole.
    const std::string path = str(folder, "/", names[idx(i)]);
    fs::rename(path, partial_of(path), none);
    tell(reached, CheckpointPhase::old_moved);
    fs::remove(str(partial_of(path), "/", kModelFile), none);
    tell(reached, CheckpointPhase::old_torn);
    fs::remove_all(partial_of(path), none);
    tell(reached, CheckpointPhase::old_removed);
  }
}

// ---- writing ----

void CheckpointWriter::begin(const std::string& folder, const CheckpointFacts& facts, const DiskNames& names,
                             const std::string& config, const ReachedPhase& reached) {
  const std::string partial = partial_of(folder);
  tell(reached, CheckpointPhase::begins);
  std::error_code error;
  fs::remove_all(partial, error);
  fs::create_directories(partial, error);
  if (error) throw InvalidInput(str(partial, " cannot be made: ", error.message()));
  tell(reached, CheckpointPhase::folder_made);
  for (const bool optimizer : {false, true}) {
    FileLayout layout;
    const std::string header = header_of(names, facts, optimizer, layout);
    DataFile file(str(partial, "/", optimizer ? kOptimizerFile : kModelFile), DataFile::Mode::create);
    file.write(0, std::as_bytes(std::span(header)));
    file.resize(layout.bytes);  // ranks synchronise the whole file when they have written their parts
  }
  // Nobody waits for it here: ranks write meanwhile, and commit() synchronises it.
  write_text_file(str(partial, "/", kConfigFile), config);
  tell(reached, CheckpointPhase::files_made);
}

CheckpointWriter::CheckpointWriter(const std::string& folder, const CheckpointFacts& facts,
                                   const DiskNames& names, ReachedPhase reached)
    : names_(names), partial_(partial_of(folder)), states_(facts.states), reached_(std::move(reached)) {
  for (const bool optimizer : {false, true}) {
    FileLayout& layout = layouts_[optimizer ? 1 : 0];
    header_of(names, facts, optimizer, layout);
    files_.emplace_back(str(partial_, "/", optimizer ? kOptimizerFile : kModelFile), DataFile::Mode::write);
    for (const FileTensor& tensor : layout.tensors) tensors_[tensor.name] = {optimizer ? 1 : 0, &tensor};
  }
}

void CheckpointWriter::write(int role, const TensorRun& run, std::span<const std::byte> elements) {
  const DiskPlace& of = names_.place(run.block.tensor);
  const std::string name = role == 0 ? of.tensor : state_tensor(states_[idx(role - 1)], of.tensor);
  const auto found = tensors_.find(name);
  CP_INVARIANT(found != tensors_.end(), "the checkpoint has no tensor ", name);
  const auto [file, place_of_tensor] = found->second;
  const FileTensor& to = *place_of_tensor;
  const std::int64_t size = size_bytes(to.dtype);
  const FileLayout& layout = layouts_[file];
  const bool is_first = sums_.empty();
  Sum& sum = sums_[name];
  DataFile& out = files_[idx(file)];
  const auto write_at = [&](std::int64_t place, std::span<const std::byte> bytes, std::int64_t count) {
    sum.sum += sum_of(to.dtype, bytes, place), sum.count += count;
    out.write(layout.data + to.offset + place * size, bytes);
  };
  std::vector<std::byte> gathered;
  for_each_stretch(run, of, [&](const Stretch& stretch) {
    // Between elements that lie apart there may be those of other ranks.
    const std::int64_t most = stretch.place_step == 1 ? kBytesAtOnce / size : 1;
    for (std::int64_t done = 0; done < stretch.count; done += most) {
      const std::int64_t now = std::min(most, stretch.count - done),
                         place = stretch.place + done * stretch.place_step;
      if (stretch.is_dense()) {
        write_at(place, elements.subspan(idx((stretch.at + done) * size), idx(now * size)), now);
        continue;
      }
      gathered.resize(idx(now * size));
      for (std::int64_t i = 0; i < now; ++i)
        std::memcpy(gathered.data() + i * size,
                    elements.data() + (stretch.at + (done + i) * stretch.at_step) * size, idx(size));
      write_at(place, gathered, now);
    }
  });
  if (is_first) tell(reached_, CheckpointPhase::writing);
}

void CheckpointWriter::finish(std::int64_t rank) {
  tell(reached_, CheckpointPhase::written);
  // The end of one file moves while the other is waited for.
  for (DataFile& file : files_) file.begin_sync();
  for (DataFile& file : files_) file.sync();
  tell(reached_, CheckpointPhase::synchronised);
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [name, sum] : sums_) json[name] = {sum.sum, sum.count};
  const std::string text = json.dump();  // read at once, and removed: it needs no synchronising
  DataFile(str(partial_, "/", sums_file(rank)), DataFile::Mode::create)
      .write(0, std::as_bytes(std::span(text)));
  tell(reached_, CheckpointPhase::summed);
}

void CheckpointWriter::commit(const std::string& folder, const CheckpointFacts& facts, const DiskNames& names,
                              std::int64_t ranks, const ReachedPhase& reached) {
  const std::string partial = partial_of(folder);
  std::map<std::string, Sum> sums;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const std::string path = str(partial, "/", sums_file(rank));
    const nlohmann::json json = nlohmann::json::parse(read_text_file(path, kKind));
    for (const auto& [name, sum] : json.items())
      sums[name].sum += sum[0].get<std::uint64_t>(), sums[name].count += sum[1].get<std::int64_t>();
    fs::remove(path);
  }
  tell(reached, CheckpointPhase::collected);
  nlohmann::ordered_json json = {
      {"format", kFormat},      {"step", facts.step},
      {"seed", facts.seed},     {"model", facts.model},
      {"text", facts.text},     {"layout", facts.layout},
      {"states", facts.states}, {"state_dtype", std::string(name(facts.state_dtype))}};
  for (const bool optimizer : {false, true}) {
    FileLayout layout;
    const std::string header = header_of(names, facts, optimizer, layout);
    nlohmann::ordered_json file = {{"bytes", layout.bytes}, {"header", checksum_text(header)}};
    for (const FileTensor& tensor : layout.tensors) {
      const Sum& sum = sums[tensor.name];
      if (sum.count != tensor.numel())
        throw InvalidInput(str("of tensor ", tensor.name, " ", sum.count,
                               " elements were written, and it has ", tensor.numel(),
                               "; the checkpoint is given up"));
      file["sums"][tensor.name] = hexadecimal(sum.sum);
    }
    json["files"][optimizer ? kOptimizerFile : kModelFile] = file;
  }
  json["config"] = checksum_text(read_text_file(str(partial, "/", kConfigFile), kKind));
  json["checksum"] = checksum_text(json.dump());
  write_text_file(str(partial, "/", kFactsFile), json.dump(1)).sync();
  DataFile(str(partial, "/", kConfigFile), DataFile::Mode::write).sync();
  sync_folder(partial);
  tell(reached, CheckpointPhase::described);
  std::error_code error;
  fs::remove_all(folder, error);
  tell(reached, CheckpointPhase::replaced);
  fs::rename(partial, folder, error);
  if (error) throw InvalidInput(str(partial, " cannot be renamed to ", folder, ": ", error.message()));
  tell(reached, CheckpointPhase::renamed);
  const fs::path parent = fs::path(folder).parent_path();
  sync_folder(parent.empty() ? "." : parent.string());
  tell(reached, CheckpointPhase::committed);
}

// ---- reading ----

CheckpointReader::CheckpointReader(std::string folder, const DiskNames& names)
    : folder_(std::move(folder)), names_(&names) {
  const std::string path = str(folder_, "/", kFactsFile);
  nlohmann::ordered_json json;
  try {
    json = nlohmann::ordered_json::parse(read_text_file(path, kKind));
    const auto expected = json.at("checksum").get<std::string>();
    json.erase("checksum");
    if (checksum_text(json.dump()) != expected)
      throw InvalidInput(str(path, " is torn: its checksum differs"));
    if (const int format = json.at("format").get<int>(); format != kFormat)
      throw InvalidInput(str(path, " has the format ", format, "; this program knows ", kFormat));
    facts_.step = json.at("step"), facts_.seed = json.at("seed");
    facts_.model = json.at("model"), facts_.text = json.at("text"), facts_.layout = json.at("layout");
    facts_.states = json.at("states").get<std::vector<std::string>>();
    facts_.state_dtype = parse_dtype(json.at("state_dtype").get<std::string>());
    for (const char* name : {kModelFile, kOptimizerFile}) {
      const auto& of = json.at("files").at(name);
      files_.emplace_back(str(folder_, "/", name), DataFile::Mode::read);
      layouts_.push_back(read_safetensors_header(files_.back()));
      const FileLayout& layout = layouts_.back();
      std::string header(idx(layout.data), '\0');
      files_.back().read(0, std::as_writable_bytes(std::span(header)));
      if (layout.bytes != of.at("bytes").get<std::int64_t>() ||
          checksum_text(header) != of.at("header").get<std::string>())
        throw InvalidInput(str(files_.back().path(), " is torn: its size or its header differs"));
      if (!of.contains("sums")) continue;
      for (const auto& [tensor, sum] : of.at("sums").items())
        sums_[tensor] = std::stoull(sum.get<std::string>(), nullptr, 16);
    }
    if (checksum_text(read_text_file(str(folder_, "/", kConfigFile), kKind)) !=
        json.at("config").get<std::string>())
      throw InvalidInput(str(folder_, "/", kConfigFile, " is torn: its checksum differs"));
  } catch (const nlohmann::json::exception& error) {
    throw InvalidInput(str(path, " is torn: ", error.what()));
  }
  tensors_ = by_name(layouts_);
}

void CheckpointReader::require() const {
  for (const DiskTensor& of : names_->tensors()) {
    const auto found = tensors_.find(of.tensor);
    const std::int64_t has = found == tensors_.end() ? 0 : found->second.second->numel();
    if (has == of.numel()) continue;
    throw InvalidInput(str(folder_, " has ", has == 0 ? "no elements" : str(has, " elements"), " of ",
                           of.tensor, ", where the model has ", of.numel(),
                           ": it was written by a version with other names for this family's tensors; go on "
                           "with that version, or use another folder to save in"));
  }
}

std::string CheckpointReader::torn(std::int64_t part, std::int64_t parts) const {
  std::int64_t number = 0;
  std::vector<std::byte> bytes;
  for (const auto& [name, place] : tensors_) {
    if (number++ % parts != part) continue;
    const auto [file, tensor] = place;
    const std::int64_t size = size_bytes(tensor->dtype), all = tensor->numel(), most = kBytesAtOnce / size;
    std::uint64_t sum = 0;
    for (std::int64_t first = 0; first < all; first += most) {
      bytes.resize(idx(std::min(most, all - first) * size));
      files_[idx(file)].read(layouts_[idx(file)].data + tensor->offset + first * size, bytes);
      sum += sum_of(tensor->dtype, bytes, first);
    }
    const auto expected = sums_.find(name);
    if (expected == sums_.end() || expected->second != sum)
      return str(files_[idx(file)].path(), " is torn: the sum of ", name, " differs");
  }
  return "";
}

void CheckpointReader::read(int role, const TensorRun& run, std::span<double> values) const {
  const DiskPlace& of = names_->place(run.block.tensor);
  const std::string name = role == 0 ? of.tensor
                           : role <= std::ssize(facts_.states)
                               ? state_tensor(facts_.states[idx(role - 1)], of.tensor)
                               : str("state ", role, " of ", of.tensor);
  const auto found = tensors_.find(name);
  if (found == tensors_.end())
    throw InvalidInput(str(folder_, " has no tensor ", name, nearest_tensor(name, tensors_)));
  const auto [file, place] = found->second;
  read_run(files_[idx(file)], layouts_[idx(file)], *place, of, run, values);
}

PretrainedReader::PretrainedReader(const std::string& folder, const DiskNames& names)
    : folder_(folder), names_(names) {
  std::set<std::string> files;
  const std::string index = str(folder, "/model.safetensors.index.json");
  if (fs::exists(index)) {
    try {
      for (const auto& [tensor, file] :
           nlohmann::json::parse(read_text_file(index, kKind)).at("weight_map").items())
        files.insert(file.get<std::string>());
    } catch (const nlohmann::json::exception& error) {
      throw InvalidInput(str(index, " is not understood: ", error.what()));
    }
  } else if (fs::exists(str(folder, "/", kModelFile))) {
    files.insert(kModelFile);
  } else {
    throw InvalidInput(str(folder, " has neither ", kModelFile, " nor ", kModelFile,
                           ".index.json; give a folder with a model as Hugging Face's tools save it"));
  }
  for (const std::string& name : files) {
    files_.emplace_back(str(folder, "/", name), DataFile::Mode::read);
    layouts_.push_back(read_safetensors_header(files_.back()));
  }
  tensors_ = by_name(layouts_);
}

void PretrainedReader::require() const {
  std::vector<std::string> findings;
  for (const DiskTensor& of : names_.tensors()) {
    if (tensors_.contains(of.tensor + "_blocks"))
      throw InvalidInput(
          str(folder_, " has ", of.tensor,
              "_blocks: its experts are quantized (MXFP4), which is "
              "not read; the nearest thing is a folder in bf16, which Transformers save of a model "
              "that they loaded with Mxfp4Config(dequantize=True)"));
    const auto found = tensors_.find(of.tensor);
    if (found == tensors_.end()) {
      findings.push_back(str("it has no tensor ", of.tensor, nearest_tensor(of.tensor, tensors_)));
      continue;
    }
    const FileTensor& tensor = *found->second.second;
    if (longer_than_one(tensor.shape) != longer_than_one(of.shape) || !is_floating(tensor.dtype))
      findings.push_back(str(of.tensor, " is ", name(tensor.dtype), " [", join(tensor.shape, ", "),
                             "], and the model's is [", join(of.shape, ", "), "]"));
  }
  std::set<std::string, std::less<>> known;
  for (const DiskTensor& of : names_.tensors()) known.insert(of.tensor);
  const std::string_view bias = ".bias";
  for (const auto& [name, place] : tensors_) {
    const bool corrects = name.ends_with(".e_score_correction_bias"),
               is_bias = name.ends_with(bias) &&
                         known.contains(name.substr(0, name.size() - bias.size()) + ".weight");
    if ((!corrects && !is_bias) || known.contains(name)) continue;
    const auto& [file, tensor] = place;
    std::vector<std::byte> bytes(idx(tensor->numel() * size_bytes(tensor->dtype)));
    files_[idx(file)].read(layouts_[idx(file)].data + tensor->offset, bytes);
    if (std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0}; }))
      continue;
    if (is_bias)
      throw InvalidInput(
          str(folder_, " has ", name,
              ", which the model does not add; the nearest thing is a config whose flag for it "
              "is true, if it has one (attention_bias), or a model without biases"));
    throw InvalidInput(str(folder_, " has ", name,
                           ", which its router adds to the scores that it chooses experts by, and the "
                           "model's routers add nothing; the nearest thing is a config with topk_method "
                           "\"noaux_tc\", or of a model_type whose routers do, such as deepseek_v3"));
  }
  if (findings.empty()) return;
  constexpr std::size_t kMost = 5;  // chosen: mostly all have one cause
  const std::size_t more = findings.size() - std::min(findings.size(), kMost);
  findings.resize(std::min(findings.size(), kMost));
  throw InvalidInput(str(folder_, " is another model's: ", join(findings, "; "),
                         more > 0 ? str("; and ", more, " more") : ""));
}

void PretrainedReader::read(int role, const TensorRun& run, std::span<double> values) const {
  if (role > 0) return std::fill(values.begin(), values.end(), 0.0);
  const DiskPlace& of = names_.place(run.block.tensor);
  const auto [file, tensor] = tensors_.at(of.tensor);
  read_run(files_[idx(file)], layouts_[idx(file)], *tensor, of, run, values);
}

}  // namespace cp
