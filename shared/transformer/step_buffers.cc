#include "shared/transformer/step_buffers.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/base/text.h"
#include "shared/context_parallel/sharding.h"
#include "shared/kernels/elements.h"
#include "shared/kernels/philox.h"
#include "shared/plan/host_place.h"
#include "shared/transformer/rank_groups.h"
#include "shared/transformer/rotary_table.h"

namespace cp {
namespace {

// What follows the term in a buffer's name, in memory of the GPU or of the host: "layers" of
// "parameters/layers" and of "host/master/layers". Empty if it is another term.
std::string_view behind(std::string_view name, std::string_view term) {
  if (name.starts_with("host/")) name.remove_prefix(5);
  return name.starts_with(term) ? name.substr(term.size()) : std::string_view{};
}

// What all stages of a rank share.
constexpr std::string_view kNorm = "working/norm";

// Of the micro-batches in flight.
bool is_in_slots(std::string_view name) {
  return !behind(name, "activations/").empty() && name != "activations/positions";
}

bool is_of_micro_batch(std::string_view name) {
  return !behind(name, "working/").empty() && name != "working/schedule" && name != kNorm &&
         !holds_leaving_gradients(name) && name != kCorrectionSchedule;
}

// Of "working/tokens 2 ahead", which a prediction layer reads: "working/tokens", and 2; else 0.
std::pair<std::string_view, std::int64_t> ahead_of(std::string_view name) {
  const std::size_t space = name.find(' ');
  if (space == std::string_view::npos || !name.ends_with(" ahead")) return {name, 0};
  std::int64_t distance = 0;
  for (const char digit : name.substr(space + 1, name.size() - space - 1 - std::string_view(" ahead").size()))
    distance = 10 * distance + (digit - '0');
  return {name.substr(0, space), distance};
}

bool is_gradient(std::string_view name) {
  return !behind(name, "gradients/").empty() || !behind(name, "unsharded/gradients/").empty();
}

// From element `first` on.
void store(DType dtype, std::span<const double> values, std::int64_t first, std::span<std::byte> bytes) {
  CP_INVARIANT((first + std::ssize(values)) * size_bytes(dtype) <= std::ssize(bytes), values.size(),
               " elements from ", first, " on do not fit into ", bytes.size(), " bytes");
  with_element_type(dtype, [&]<class T>(std::type_identity<T>) {
    std::byte* to = bytes.data() + idx(first) * sizeof(T);
    for (const double value : values) {
      const T element = convert<T>(value);
      std::memcpy(to, &element, sizeof element);
      to += sizeof element;
    }
  });
}

double load_at(const std::byte* bytes, DType dtype, std::int64_t index) {
  return with_floating_type(dtype, [&]<class T>(std::type_identity<T>) {
    T element;
    std::memcpy(&element, bytes + idx(index) * sizeof element, sizeof element);
    return static_cast<double>(load(element));
  });
}

}  // namespace

// As many bits as a double holds, which StepBuffers::initial() gives.
std::int64_t dropout_seed(std::uint64_t seed, std::int64_t step) {
  const auto of_step = static_cast<std::uint64_t>(step);
  const PhiloxWords words =
      philox({{static_cast<std::uint32_t>(of_step), static_cast<std::uint32_t>(of_step >> 32), 0, 0}}, seed);
  return static_cast<std::int64_t>((std::uint64_t{words.words[0]} << 32 | words.words[1]) >> 11);
}

StepBuffers::StepBuffers(const StepRequest& request, Rank self, Values values, DeviceMemory* memory)
    : request_(request),
      values_(std::move(values)),
      memory_(memory),
      micro_batches_(accumulation(request.workload, request.layout)),
      order_(step_order(request, self)) {
  slots_.resize(idx(order_.slots)), row_slots_.resize(idx(order_.row_slots));
  const ParallelLayout& layout = request.layout;
  const RankGroups groups(layout, self);
  first_sequence_ = first_sequence(request, self, 0);
  for (int stage = groups.pp(); stage < layout.pp * layout.virtual_stages; stage += layout.pp) {
    stages_.push_back(stage);
    units_[stage] = tensors_of_stage(request, stage, self);
  }
  const std::vector<int> homes = homes_of_layers(request.model, request.workload, layout);
  first_home_ = homes.front(), last_home_ = homes.back();
  const AttentionProblem problem =
      attention_problem(request.model, request.workload, layout, request.model.kinds.front());
  for (int home = 0; home <= *std::max_element(homes.begin(), homes.end()); ++home) {
    const AttentionSharding sharding(problem, layout.cp, strategy_at_home(layout, home));
    const IndexSet rows = sharding.home_q(groups.cp()).rows;
    std::vector<std::int64_t>& positions = rows_at_.emplace_back();
    for (std::int64_t row = 0; row < size(rows); ++row) positions.push_back(to_global(rows, row));
  }
}

void StepBuffers::begin_step(StepBatch batch) {
  const std::int64_t tokens = request_.workload.tokens();
  if (std::ssize(batch.tokens) != tokens || std::ssize(batch.labels) != tokens)
    throw InvalidInput(str("a batch of ", batch.tokens.size(), " tokens and ", batch.labels.size(),
                           " labels; the step has ", request_.workload.global_batch, " sequences of ",
                           request_.workload.seq_len));
  batch_ = std::move(batch);
  if (labelled() == 0)
    throw InvalidInput("no token of the batch has a label, so that it has no mean loss; label one at least");
  // What was made of the batch before is filled anew when it is bound; what plans write is theirs.
  for (auto& [of, buffers] : passing_) {
    for (auto& [name, place] : buffers) {
      place.is_filled = place.is_filled && !place.is_input;
      place.is_of_last_step = true;
    }
  }
  for (std::vector<Bytes>* const slots : {&slots_, &row_slots_}) {
    for (Bytes& slot : *slots) {
      for (auto& [name, place] : slot) place.is_of_last_step = true;
    }
  }
  for (auto& [stage, buffers] : lasting_) {
    for (auto& [name, place] : buffers) {
      if (is_gradient(name) || behind(name, "working/") == "schedule" || name == "host/schedule" ||
          name == kCorrectionSchedule)
        place.is_filled = false;
    }
  }
}

std::int64_t StepBuffers::labelled() const {
  return std::ssize(batch_.labels) - std::count(batch_.labels.begin(), batch_.labels.end(), kIgnoredLabel);
}

// Of each row what the one `distance` behind it has, or `missing` where that is not in its document.
std::vector<std::int32_t> StepBuffers::rows(const std::vector<std::int32_t>& of_batch, int home,
                                            std::int64_t micro_batch, std::int64_t distance,
                                            std::int32_t missing) const {
  std::vector<std::int32_t> rows;
  const std::int64_t seq_len = request_.workload.seq_len,
                     first = first_sequence_ + micro_batch * request_.layout.micro_batch;
  for (std::int64_t sequence = first; sequence < first + request_.layout.micro_batch; ++sequence) {
    for (const std::int64_t row : rows_at_[idx(home)]) {
      const std::int64_t at = row + distance;
      const bool is_there = at < document_end(request_.workload, sequence, row);
      rows.push_back(is_there ? of_batch[idx(sequence * seq_len + at)] : missing);
    }
  }
  return rows;
}

// From element `first` of the buffer on, a part at a time: values are doubles, and with those of all of a
// model's parameters a rank would need three times the memory of its shard.
void StepBuffers::fill_run(int role, const TensorRun& run, std::int64_t first, DType dtype,
                           std::span<std::byte> bytes) const {
  constexpr std::int64_t kAtOnce = std::int64_t{1} << 18;  // chosen: 2 MiB, and few calls
  std::vector<double> values(idx(std::min(run.count, kAtOnce)));
  for (std::int64_t done = 0; done < run.count; done += kAtOnce) {
    const std::int64_t now = std::min(kAtOnce, run.count - done);
    const std::span<double> part = std::span(values).first(idx(now));
    values_(role, {run.block, run.first + done, now}, part);
    store(dtype, part, first + done, bytes);
  }
}

// Whole pieces; their padding stays as it is.
void StepBuffers::fill_whole(const UnitTensors& unit, DType dtype, std::span<std::byte> bytes) const {
  for (std::int64_t piece = 0; piece < unit.unit.pieces; ++piece) {
    for (const TensorBlock& block : unit.pieces[idx(piece)])
      fill_run(0, {block, 0, block.rows * block.columns}, unit.in_whole({piece, block.begin}), dtype, bytes);
  }
}

// What the rank owns, from element `first` of the buffer on.
void StepBuffers::fill_owned(const UnitTensors& unit, int role, std::int64_t first, DType dtype,
                             std::span<std::byte> bytes) const {
  unit.for_each_owned(
      [&](const TensorRun& run, std::int64_t index) { fill_run(role, run, first + index, dtype, bytes); });
}

// Of a buffer that is no parameter, state or gradient; nothing of others.
std::vector<double> StepBuffers::initial(const Buffer& buffer, int stage, std::int64_t micro_batch) const {
  const auto from_ids = [](const std::vector<std::int32_t>& ids) {
    return std::vector<double>(ids.begin(), ids.end());
  };
  const std::string& name = buffer.name;
  const auto [what, distance] = ahead_of(name);
  // Prediction layers stand behind the last layer, and embed tokens at its home.
  if (what == "working/tokens")
    return from_ids(rows(batch_.tokens, distance == 0 ? first_home_ : last_home_, micro_batch, distance, 0));
  if (what == "working/targets")
    return from_ids(rows(batch_.labels, last_home_, micro_batch, distance, kIgnoredLabel));
  if (what == "working/loss_weight") {
    const auto depths = static_cast<double>(request_.model.prediction_layers);
    return {(distance == 0 ? 1 : batch_.prediction_weight / depths) / static_cast<double>(labelled())};
  }
  if (behind(name, "working/") == "schedule" || name == "host/schedule")
    return {batch_.learning_rate, static_cast<double>(batch_.step)};
  if (name == kCorrectionSchedule) return {batch_.correction_rate, static_cast<double>(batch_.step)};
  if (name == kSeedsBuffer) {
    const std::int64_t first = layers_of_stage(request_.model, request_.layout, stage).first,
                       sequence = first_sequence_ + micro_batch * request_.layout.micro_batch;
    std::vector<double> seeds;
    for (std::int64_t layer = 0; layer < buffer.numel / kPlacedSeed; ++layer) {
      for (const std::int64_t number : {dropout_seed(batch_.seed, batch_.step), first + layer, sequence})
        seeds.push_back(static_cast<double>(number));
    }
    return seeds;
  }
  if (name == "activations/positions") {
    const std::vector<float> table = rotary_table(request_.model, request_.workload.seq_len);
    return {table.begin(), table.end()};
  }
  return {};
}

// Parameters and states; of other buffers nothing.
void StepBuffers::fill_tensors(const Buffer& buffer, int stage, std::span<std::byte> bytes) const {
  for (const UnitTensors& unit : units_.at(stage)) {
    const auto is = [&](std::string_view term) { return behind(buffer.name, term) == unit.unit.name; };
    if (is("unsharded/")) fill_whole(unit, buffer.dtype, bytes);
    if (is("parameters/") || is("master/")) fill_owned(unit, 0, 0, buffer.dtype, bytes);
    const int states = request_.workload.optimizer.states;
    for (int state = 0; is("optimizer/") && state < states; ++state)
      fill_owned(unit, state + 1, state * unit.num_owned(), buffer.dtype, bytes);
  }
}

void StepBuffers::fill(Place& place, const Buffer& buffer, int stage, std::int64_t micro_batch) {
  const bool on_device = memory_ != nullptr && !lies_on_host(buffer);
  if (place.size == 0) place.size = buffer.bytes();
  const bool is_new = place.device == nullptr && place.host.empty();
  place.is_filled = true, place.is_input = buffer.kind != BufferKind::output;
  if (is_new && on_device) place.device = memory_->allocate(place.size);
  if (on_device && is_gradient(buffer.name)) return memory_->fill_with_zeros(place.device, place.size);
  if (is_new && !on_device && memory_ != nullptr) {
    place.host = {static_cast<std::byte*>(memory_->allocate_on_host(place.size)), idx(place.size)};
  } else if (is_new || on_device) {
    place.own.resize(idx(place.size)), place.host = place.own;
  }
  std::fill(place.host.begin(), place.host.end(), std::byte{});
  if (is_gradient(buffer.name)) return;
  fill_tensors(buffer, stage, place.host);
  store(buffer.dtype, initial(buffer, stage, micro_batch), 0, place.host);
  if (!on_device) return;
  memory_->upload(place.device, place.host);
  place.own = {}, place.host = {};
}

std::span<const std::byte> StepBuffers::bytes_of(const Place& place, std::vector<std::byte>& copy) const {
  if (place.device == nullptr) return place.host;
  copy.resize(idx(place.size));
  memory_->download(copy, place.device);
  return copy;
}

void StepBuffers::make_room(const Plan& plan) {
  for (const Buffer& buffer : plan.buffers) {
    if (buffer.kind == BufferKind::temporary || !is_in_slots(buffer.name)) continue;
    std::int64_t& size = slot_sizes_[buffer.name];
    size = std::max(size, buffer.bytes());
  }
}

StepBuffers::Place& StepBuffers::place_of(const Buffer& buffer, const PartRun& run) {
  if (!is_in_slots(buffer.name)) {
    if (holds_leaving_gradients(buffer.name))
      return leaving_[{run.stage, run.micro_batch % kLeavingGradients}][buffer.name];
    Bytes& buffers = is_of_micro_batch(buffer.name)
                         ? passing_[{run.stage, run.micro_batch}]
                         : lasting_[buffer.name == kNorm ? stages_.front() : run.stage];
    return buffers[buffer.name];
  }
  Bytes& slot = holds_rows(buffer.name) ? row_slots_.at(idx(run.rows)) : slots_.at(idx(run.slot));
  Place& place = slot[buffer.name];
  if (place.size > 0) return place;
  const auto known = slot_sizes_.find(buffer.name);
  place.size = std::max(buffer.bytes(), known == slot_sizes_.end() ? 0 : known->second);
  return place;
}

std::int64_t StepBuffers::slot_bytes() const {
  std::int64_t bytes = 0;
  for (const std::vector<Bytes>* const slots : {&slots_, &row_slots_}) {
    for (const Bytes& slot : *slots) {
      for (const auto& [name, place] : slot) bytes += name.starts_with("host/") ? 0 : place.size;
    }
  }
  return bytes;
}

Bindings StepBuffers::bind(const Plan& plan, const PartRun& run) {
  Bindings bindings;
  for (std::size_t id = 0; id < plan.buffers.size(); ++id) {
    const Buffer& buffer = plan.buffers[id];
    if (buffer.kind == BufferKind::temporary) continue;
    Place& place = place_of(buffer, run);
    // Other documents than those of the last step keep more for the backward pass, or less.
    if (place.is_of_last_step && place.size < buffer.bytes()) {
      place = {};
      place_of(buffer, run);
    }
    place.is_of_last_step = false;
    if (!place.is_filled) fill(place, buffer, run.stage, run.micro_batch);
    // The backward pass of the last stage takes the inputs of its layers, and not what the last of them gave.
    CP_INVARIANT(place.size >= buffer.bytes(), buffer.name, " of rank ", plan.self, " has ", place.size,
                 " bytes, and a plan of stage ", run.stage, " wants ", buffer.bytes());
    bindings.push_back({static_cast<BufferId>(id), place.device != nullptr ? place.device : place.host.data(),
                        buffer.bytes()});
  }
  return bindings;
}

void StepBuffers::for_each_loss(const std::function<void(const RowLoss&)>& use) const {
  const std::vector<std::int64_t>& rows = rows_at_[idx(last_home_)];
  for (const auto& [key, buffers] : passing_) {
    const auto losses = buffers.find("working/losses");
    if (losses == buffers.end()) continue;
    std::vector<std::byte> copy;
    const std::span<const std::byte> bytes = bytes_of(losses->second, copy);
    const std::int64_t first = first_sequence_ + key.second * request_.layout.micro_batch;
    std::int64_t index = 0;
    for (std::int64_t sequence = first; sequence < first + request_.layout.micro_batch; ++sequence) {
      for (std::size_t i = 0; i < rows.size(); ++i, ++index) {
        const std::int64_t row = rows[i];
        const bool ends =
            row + 1 < request_.workload.seq_len && (i + 1 == rows.size() || rows[i + 1] != row + 1);
        use({sequence, row, load_at(bytes.data(), DType::f32, index), ends});
      }
    }
  }
}

double StepBuffers::norm() const {
  const Bytes& lasting = lasting_.at(stages_.front());
  const auto found = lasting.find(std::string(kNorm));
  CP_INVARIANT(found != lasting.end(), "no update has been bound");
  std::vector<std::byte> copy;
  return std::sqrt(load_at(bytes_of(found->second, copy).data(), DType::f32, 0));
}

double StepBuffers::Owned::value(int role, std::int64_t at) const {
  return role == 0 ? parameters[at] : load_at(states[idx(role - 1)], state_dtype, at);
}

void StepBuffers::for_each_owned(int stage, const std::function<void(const Owned&)>& use) const {
  const Bytes& lasting = lasting_.at(stage);
  // Where 16-bit parameters are whole, or the host has the optimizer, f32 master copies are what is owned.
  const auto find = [&](const UnitTensors& unit, std::initializer_list<const char*> terms) {
    for (const char* term : terms) {
      const auto found = lasting.find(term + unit.unit.name);
      if (found != lasting.end()) return &found->second;
    }
    return static_cast<const Place*>(nullptr);
  };
  const Optimizer& optimizer = request_.workload.optimizer;
  for (const UnitTensors& unit : units_.at(stage)) {
    const auto* const parameters = find(unit, {"host/master/", "master/", "parameters/"});
    const auto* const states = find(unit, {"host/optimizer/", "optimizer/"});
    const int num_states = unit.trained ? optimizer.states : 0;
    CP_INVARIANT(parameters != nullptr && (states != nullptr || num_states == 0), "no update of ",
                 unit.unit.name, " has been bound");
    std::vector<std::byte> copied_parameters, copied_states;
    const std::byte *const f32 = bytes_of(*parameters, copied_parameters).data(),
                           *const of_states =
                               states == nullptr ? nullptr : bytes_of(*states, copied_states).data();
    const std::int64_t owned = unit.num_owned(), size = size_bytes(optimizer.state_dtype);
    unit.for_each_owned([&](const TensorRun& run, std::int64_t index) {
      Owned part{unit, run, reinterpret_cast<const float*>(f32) + index, {}, optimizer.state_dtype};
      for (int state = 0; state < num_states; ++state)
        part.states.push_back(of_states + (state * owned + index) * size);
      use(part);
    });
  }
}

void run_step(const PlanOfPart& plans, const RunPlan& run_plan, StepBuffers& buffers) {
  const StepOrder& order = buffers.order();
  for (const PartRun& run : order.passes) buffers.make_room(plans(run.part, run.stage, run.micro_batch));
  for (const std::vector<PartRun>* runs : {&order.passes, &order.updates}) {
    for (const PartRun& run : *runs) {
      const Plan& plan = plans(run.part, run.stage, run.micro_batch);
      run_plan(plan, buffers.bind(plan, run));
    }
  }
}

void run_step(const PlanOfPart& plans, Device& device, StepBuffers& buffers) {
  const StepOrder& order = buffers.order();
  for (const PartRun& run : order.passes) buffers.make_room(plans(run.part, run.stage, run.micro_batch));
  std::map<const Plan*, PreparedPlan> prepared;
  const PreparePart prepare = [&](const PartRun& run) -> PreparedPlan& {
    const Plan& plan = plans(run.part, run.stage, run.micro_batch);
    const auto found = prepared.find(&plan);
    if (found != prepared.end()) return found->second;
    return prepared.try_emplace(&plan, device, plan, buffers.bind(plan, run), lane_of(run.part))
        .first->second;
  };
  enqueue_parts(order.passes, prepare, buffers);
  enqueue_parts(order.updates, prepare, buffers);
  device.synchronize();
}

void enqueue_parts(const std::vector<PartRun>& runs, const PreparePart& prepare, StepBuffers& buffers,
                   RankTrace* trace) {
  std::vector<PlanRun> begun, before;
  begun.reserve(runs.size());
  for (const PartRun& run : runs) {
    PreparedPlan& prepared = prepare(run);
    before.clear();
    for (const std::size_t other : run.after) before.push_back(begun.at(other));
    begun.push_back(prepared.run_after(before, buffers.bind(prepared.plan(), run), trace));
  }
}

}  // namespace cp
