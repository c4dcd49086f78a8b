#include "sim/present/traces/trace_arguments.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string_view>
#include <utility>

#include "shared/base/index.h"
#include "shared/base/text.h"

namespace cp::sim {
namespace {

// For each type of element, NCCL has one kernel that serves all reductions. Its name says Sum, and the type
// without a sign (src/device/generate.py).
std::string reduction_kernel(std::string_view operation, DType dtype) {
  std::string type(name(dtype));
  if (!is_floating(dtype)) type.front() = 'u';
  return str("ncclDevKernel_", operation, "_Sum_", type, "_RING_LL");
}

std::string_view pytorch_dtype(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "Float";
    case DType::f16:
      return "Half";
    case DType::bf16:
      return "BFloat16";
    case DType::i32:
      return "Int";
    case DType::i64:
      return "Long";
  }
  return "";
}

DType dtype_of(const View& view, const Plan& plan) { return plan.buffers[idx(view.buffer)].dtype; }

// A collective as ProcessGroupNCCL records it.
struct PytorchCall {
  std::string name;
  std::int64_t in_elements = 0, out_elements = 0;
  DType dtype = DType::f32;
  std::vector<std::int64_t> in_split, out_split;  // of all_to_allv
};

PytorchCall pytorch_exchange(const Exchange& exchange, const Plan& plan) {
  const std::size_t members = plan.groups[idx(exchange.group)].ranks.size();
  PytorchCall call{"all_to_allv",
                   0,
                   0,
                   DType::f32,
                   std::vector<std::int64_t>(members),
                   std::vector<std::int64_t>(members)};
  for (const Transfer& send : exchange.sends) {
    call.in_elements += send.view.numel(), call.in_split[idx(send.peer)] += send.view.numel();
  }
  for (const Transfer& recv : exchange.recvs) {
    call.out_elements += recv.view.numel(), call.out_split[idx(recv.peer)] += recv.view.numel();
  }
  const auto& transfers = exchange.sends.empty() ? exchange.recvs : exchange.sends;
  if (!transfers.empty()) call.dtype = dtype_of(transfers.front().view, plan);
  return call;
}

PytorchCall pytorch_call(const Collective& collective, const Plan& plan) {
  if (const auto* exchange = std::get_if<Exchange>(&collective)) return pytorch_exchange(*exchange, plan);
  const auto whole = [&](std::string name, const auto& op) {
    return PytorchCall{std::move(name), op.in.numel(), op.out.numel(), dtype_of(op.in, plan), {}, {}};
  };
  return std::visit(Overloaded{[&](const AllGather& op) { return whole("_allgather_base", op); },
                               [&](const ReduceScatter& op) { return whole("_reduce_scatter_base", op); },
                               [&](const AllReduce& op) { return whole("allreduce", op); },
                               [&](const AllToAll& op) { return whole("all_to_all", op); },
                               [&](const Broadcast& op) { return whole("broadcast", op); },
                               [&](const Exchange& op) { return pytorch_exchange(op, plan); }},
                    collective);
}

// The profiler writes only the first 30 of a list of sizes; otherwise the sizes would be most of a file.
std::vector<std::string> shortened(const std::vector<std::int64_t>& sizes) {
  constexpr std::size_t kWritten = 30;
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < std::min(sizes.size(), kWritten); ++i)
    texts.push_back(std::to_string(sizes[i]));
  if (sizes.size() > kWritten) texts.emplace_back("...");
  return texts;
}

// In the profiler's files a list is a text.
template <class List>
std::string list_text(const List& list) {
  return str("[", join(list, ", "), "]");
}

std::int64_t sum(const std::vector<std::int64_t>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

// Returns the bytes of the larger buffer. The transfers of an exchange may differ in their types.
std::int64_t message_bytes(const Collective& collective, const Plan& plan) {
  if (std::holds_alternative<Exchange>(collective)) {
    const Volume moved = volume(collective, plan);
    return std::max(sum(moved.sent), sum(moved.received));
  }
  const PytorchCall call = pytorch_call(collective, plan);
  return std::max(call.in_elements, call.out_elements) * size_bytes(call.dtype);
}

const Group& group_in(const Plan& plan, const Collective& collective) {
  return plan.groups[idx(group_of(collective))];
}

void add_profiler_arguments(std::vector<TraceArgument>& arguments, const Collective& collective,
                            const Plan& plan, const TraceSlice& slice) {
  const PytorchCall call = pytorch_call(collective, plan);
  const Group& group = group_in(plan, collective);
  const Volume moved = volume(collective, plan);
  arguments.push_back({"Collective name", call.name});
  arguments.push_back({"In msg nelems", call.in_elements});
  arguments.push_back({"Out msg nelems", call.out_elements});
  arguments.push_back({"Group size", static_cast<std::int64_t>(group.ranks.size())});
  arguments.push_back({"dtype", std::string(pytorch_dtype(call.dtype))});
  arguments.push_back({"In split size", list_text(shortened(call.in_split))});
  arguments.push_back({"Out split size", list_text(shortened(call.out_split))});
  arguments.push_back({"Process Group Name", group.name});
  arguments.push_back({"Process Group Ranks", list_text(group.ranks)});
  arguments.push_back({"Seq", slice.sequence});
  arguments.push_back({"bytes sent", sum(moved.sent)});
  arguments.push_back({"bytes received", sum(moved.received)});
  arguments.push_back({"waited ns", slice.waited_ns});
}

}  // namespace

std::string slice_name(const TraceSlice& slice, const Plan& plan) {
  const Step& step = *slice.step;
  std::string text =
      str(operation_name(step.work), ": ", step.label.empty() ? str("step ", slice.id) : step.label);
  if (const auto* collective = std::get_if<Collective>(&step.work)) {
    text += str(", group ", group_in(plan, *collective).name, ", ",
                human_bytes(message_bytes(*collective, plan)));
  }
  return text;
}

std::vector<TraceArgument> slice_arguments(const TraceSlice& slice, const Plan& plan) {
  const Step& step = *slice.step;
  std::vector<TraceArgument> arguments = {{"operation", std::string(operation_name(step.work))},
                                          {"step", std::int64_t{slice.id}},
                                          {"iteration", slice.iteration}};
  if (!step.label.empty()) arguments.push_back({"label", step.label});
  const auto* collective = std::get_if<Collective>(&step.work);
  if (collective == nullptr) return arguments;
  const Group& group = group_in(plan, *collective);
  const Volume moved = volume(*collective, plan);
  arguments.push_back({"group", group.name});
  arguments.push_back({"ranks", list_text(group.ranks)});
  arguments.push_back({"sequence", slice.sequence});
  arguments.push_back({"dtype", std::string(name(pytorch_call(*collective, plan).dtype))});
  arguments.push_back({"bytes", message_bytes(*collective, plan)});
  arguments.push_back({"bytes sent", sum(moved.sent)});
  arguments.push_back({"bytes received", sum(moved.received)});
  arguments.push_back({"waited ns", slice.waited_ns});
  return arguments;
}

std::string profiler_name(const Step& step, const Plan& plan) {
  const auto* collective = std::get_if<Collective>(&step.work);
  if (collective == nullptr) return std::string(operation_name(step.work));
  return std::visit(
      Overloaded{
          [](const AllGather&) { return std::string("ncclDevKernel_AllGather_RING_LL"); },
          [](const Broadcast&) { return std::string("ncclDevKernel_Broadcast_RING_LL"); },
          [&](const ReduceScatter& op) { return reduction_kernel("ReduceScatter", dtype_of(op.in, plan)); },
          [&](const AllReduce& op) { return reduction_kernel("AllReduce", dtype_of(op.in, plan)); },
          [](const AllToAll&) { return std::string("ncclDevKernel_SendRecv"); },
          [](const Exchange&) { return std::string("ncclDevKernel_SendRecv"); }},
      *collective);
}

std::vector<TraceArgument> profiler_arguments(const TraceSlice& slice, const Plan& plan) {
  const Step& step = *slice.step;
  std::vector<TraceArgument> arguments = {{"stream", trace_stream(slice.row)},
                                          {"correlation", slice.correlation},
                                          {"step", std::int64_t{slice.id}},
                                          {"iteration", slice.iteration}};
  if (!step.label.empty()) arguments.push_back({"label", step.label});
  if (const auto* collective = std::get_if<Collective>(&step.work))
    add_profiler_arguments(arguments, *collective, plan, slice);
  return arguments;
}

}  // namespace cp::sim
