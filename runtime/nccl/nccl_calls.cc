#include "runtime/nccl/nccl_calls.h"

#include <algorithm>
#include <utility>

#include "shared/plan/execute.h"

namespace cp::runtime {
namespace {

using Function = NcclCall::Function;

// Notes the calls of one launch of a collective.
class Lowering {
 public:
  Lowering(const Plan& plan, const NcclLaunch& launch, std::vector<NcclCall>& calls)
      : plan_(plan), launch_(launch), calls_(calls) {}

  void add(const AllGather& op) { in_out(Function::all_gather, op.group, op.in, op.out, op.in.numel()); }
  void add(const ReduceScatter& op) {
    in_out(Function::reduce_scatter, op.group, op.in, op.out, op.out.numel()).reduction = op.op;
  }
  void add(const AllReduce& op) {
    in_out(Function::all_reduce, op.group, op.in, op.out, op.in.numel()).reduction = op.op;
  }
  void add(const Broadcast& op) {
    NcclCall& made = call(Function::broadcast, op.group, op.out.numel(), op.out);
    if (index_in_group(plan_, op.group) == op.root) made.send_buffer = at(op.in);
    made.recv_buffer = at(op.out);
    made.peer = op.root;
  }
  void add(const AllToAll& op) {
    const std::int32_t self = index_in_group(plan_, op.group);
    const auto size =
        static_cast<std::int32_t>(plan_.groups[static_cast<std::size_t>(op.group)].ranks.size());
    const std::int64_t count = op.in.numel() / size;
    if (by_copy_engine(op.group)) {
      in_out(Function::all_to_all, op.group, op.in, op.out, count);
      return;
    }
    bracket(Function::group_start, op.group);
    for (std::int32_t peer = 0; peer < size; ++peer) {
      if (count == 0 && peer != self) continue;
      transfer(Function::send, op.group, peer, op.in, peer * count, count);
      transfer(Function::recv, op.group, peer, op.out, peer * count, count);
    }
    bracket(Function::group_end, op.group);
  }
  void add(const Exchange& op) {
    if (by_copy_engine(op.group)) return add_puts(op);
    bracket(Function::group_start, op.group);
    for (const Transfer& send : op.sends) {
      if (send.view.numel() > 0)
        transfer(Function::send, op.group, send.peer, send.view, 0, send.view.numel());
    }
    for (const Transfer& recv : op.recvs) {
      if (recv.view.numel() > 0)
        transfer(Function::recv, op.group, recv.peer, recv.view, 0, recv.view.numel());
    }
    bracket(Function::group_end, op.group);
  }

 private:
  Address at(const View& view) const { return {view.buffer, offset_at(view, launch_.iteration)}; }
  bool by_copy_engine(GroupId group) const {
    return plan_.groups[static_cast<std::size_t>(group)].copy_engine;
  }

  // nccl_calls.h says why in this order.
  void add_puts(const Exchange& op) {
    for (const std::int32_t peer : peers_of(op.recvs)) signal(Function::signal, op.group, peer);
    for (const std::int32_t peer : peers_of(op.sends)) signal(Function::wait_signal, op.group, peer);
    bracket(Function::group_start, op.group);
    for (const Transfer& send : op.sends) {
      NcclCall& made = call(Function::put_signal, op.group, send.view.numel(), send.view);
      made.peer = send.peer;
      made.send_buffer = at(send.view), made.recv_buffer = at(send.there);
    }
    bracket(Function::group_end, op.group);
    for (const Transfer& recv : op.recvs) {
      NcclCall& made = call(Function::wait_signal, op.group, recv.view.numel(), recv.view);
      made.peer = recv.peer;
      made.recv_buffer = at(recv.view);
    }
  }
  void signal(Function function, GroupId comm, std::int32_t peer) {
    calls_.push_back({.function = function,
                      .stream = launch_.stream,
                      .launch = launch_.number,
                      .comm = comm,
                      .peer = peer});
  }
  // Each once, in the order of its first transfer.
  static std::vector<std::int32_t> peers_of(const std::vector<Transfer>& transfers) {
    std::vector<std::int32_t> peers;
    for (const Transfer& transfer : transfers) {
      if (std::find(peers.begin(), peers.end(), transfer.peer) == peers.end()) peers.push_back(transfer.peer);
    }
    return peers;
  }

  DType dtype(const View& view) const { return plan_.buffers[static_cast<std::size_t>(view.buffer)].dtype; }

  NcclCall& call(Function function, GroupId comm, std::int64_t count, const View& typed) {
    return calls_.emplace_back(NcclCall{.function = function,
                                        .stream = launch_.stream,
                                        .launch = launch_.number,
                                        .comm = comm,
                                        .count = count,
                                        .dtype = dtype(typed)});
  }
  void bracket(Function function, GroupId comm) {
    calls_.push_back(
        {.function = function, .stream = launch_.stream, .launch = launch_.number, .comm = comm});
  }

  // `view`: the memory; `offset`: where the transfer begins in it.
  void transfer(Function function, GroupId comm, std::int32_t peer, const View& view, std::int64_t offset,
                std::int64_t count) {
    NcclCall& made = call(function, comm, count, view);
    made.peer = peer;
    Address& address = function == Function::send ? made.send_buffer : made.recv_buffer;
    address = at(view);
    address.offset += offset;
  }

  NcclCall& in_out(Function function, GroupId comm, const View& in, const View& out, std::int64_t count) {
    NcclCall& made = call(function, comm, count, out);
    made.send_buffer = at(in);
    made.recv_buffer = at(out);
    return made;
  }

  const Plan& plan_;
  const NcclLaunch launch_;
  std::vector<NcclCall>& calls_;
};

// A device that notes the calls and does nothing: the executor decides on events and iterations, as it does
// for real ones.
class CallNotes : public Device {
 public:
  explicit CallNotes(const Plan& plan) : plan_(plan) {}

  Rank rank() const override { return plan_.self; }
  const Target& target() const override { return plan_.target; }
  void prepare(const Plan&, const Bindings&) override {}
  void synchronize() override {}
  void upload(BufferId, std::span<const std::byte>) override {}
  void download(BufferId, std::span<std::byte>) override {}

  EventId record(StreamId stream) override {
    calls_.push_back({.function = Function::event_record, .stream = stream, .event = next_event_});
    return next_event_++;
  }
  void wait(StreamId stream, EventId event) override {
    calls_.push_back({.function = Function::stream_wait_event, .stream = stream, .event = event});
  }
  void launch(const StepRef& ref, std::int64_t iteration) override {
    const Step& step = *ref.step;
    if (const Collective* collective = std::get_if<Collective>(&step.work)) {
      add_nccl_calls(plan_, *collective, {step.stream, launches_, iteration}, calls_);
    } else {
      calls_.push_back({.function = Function::kernel,
                        .stream = step.stream,
                        .launch = launches_,
                        .kernel = operation_name(step.work)});
    }
    ++launches_;
  }

  std::vector<NcclCall> take() { return std::move(calls_); }

 private:
  const Plan& plan_;
  std::vector<NcclCall> calls_;
  EventId next_event_ = 0;
  std::int64_t launches_ = 0;
};

}  // namespace

void add_nccl_calls(const Plan& plan, const Collective& collective, const NcclLaunch& launch,
                    std::vector<NcclCall>& calls) {
  Lowering lowering(plan, launch, calls);
  std::visit([&](const auto& op) { lowering.add(op); }, collective);
}

std::vector<NcclCall> nccl_calls(const Plan& plan) {
  CallNotes notes(plan);
  enqueue_steps(plan, notes);
  return notes.take();
}

}  // namespace cp::runtime
