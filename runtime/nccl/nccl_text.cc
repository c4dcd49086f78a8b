#include "runtime/nccl/nccl_calls.h"
#include "shared/base/text.h"

namespace cp::runtime {
namespace {

using Function = NcclCall::Function;

std::string_view nccl_name(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "ncclFloat32";
    case DType::f16:
      return "ncclFloat16";
    case DType::bf16:
      return "ncclBfloat16";
    case DType::i32:
      return "ncclInt32";
    case DType::i64:
      return "ncclInt64";
  }
  return "?";
}

std::string_view nccl_name(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return "ncclSum";
    case ReduceOp::avg:
      return "ncclAvg";
    case ReduceOp::min:
      return "ncclMin";
    case ReduceOp::max:
      return "ncclMax";
    case ReduceOp::product:
      return "ncclProd";
  }
  return "?";
}

class Writer {
 public:
  explicit Writer(const Plan& plan) : plan_(plan) {}

  std::string line(const NcclCall& call) const {
    const std::string on = str(comm(call.comm), ", ", stream(call.stream), ")");
    switch (call.function) {
      case Function::all_gather:
        return str("ncclAllGather(", in_out(call), on);
      case Function::reduce_scatter:
        return str("ncclReduceScatter(", in_out(call), nccl_name(*call.reduction), ", ", on);
      case Function::all_reduce:
        return str("ncclAllReduce(", in_out(call), nccl_name(*call.reduction), ", ", on);
      case Function::broadcast:
        return str("ncclBroadcast(", in_out(call), call.peer, ", ", on);
      case Function::send:
        return str("  ncclSend(", transfer(call, call.send_buffer), on);
      case Function::recv:
        return str("  ncclRecv(", transfer(call, call.recv_buffer), on);
      case Function::all_to_all:
        return str("ncclAlltoAll(", in_out(call), on);
      case Function::put_signal:
        return str("  ncclPutSignal(", address(call.send_buffer), ", ", typed(call), call.peer, ", ",
                   address(call.recv_buffer), ", ", on);
      case Function::signal:
        return str("ncclSignal(", call.peer, ", ", on);
      case Function::wait_signal:
        return str("ncclWaitSignal(", call.peer, ", ",
                   call.recv_buffer.buffer < 0
                       ? ""
                       : str(address(call.recv_buffer), ", ", call.count, ", ", nccl_name(call.dtype), ", "),
                   on);
      case Function::group_start:
        return "ncclGroupStart()";
      case Function::group_end:
        return "ncclGroupEnd()";
      case Function::kernel:
        return str(call.kernel, "<<<", stream(call.stream), ">>>");
      case Function::event_record:
        return str("cudaEventRecord(", call.event, ", ", stream(call.stream), ")");
      case Function::stream_wait_event:
        return str("cudaStreamWaitEvent(", stream(call.stream), ", ", call.event, ")");
    }
    return "?";
  }

 private:
  std::string address(const Address& address) const {
    if (address.buffer < 0) return "nullptr";
    return str(plan_.buffers[static_cast<std::size_t>(address.buffer)].name, "+", address.offset);
  }
  const std::string& stream(StreamId stream) const {
    static const std::string none = "-";
    return stream < 0 ? none : plan_.streams[static_cast<std::size_t>(stream)];
  }
  const std::string& comm(GroupId comm) const {
    static const std::string none = "-";
    return comm < 0 ? none : plan_.groups[static_cast<std::size_t>(comm)].name;
  }
  std::string typed(const NcclCall& call) const { return str(call.count, ", ", nccl_name(call.dtype), ", "); }
  std::string in_out(const NcclCall& call) const {
    return str(address(call.send_buffer), ", ", address(call.recv_buffer), ", ", typed(call));
  }
  std::string transfer(const NcclCall& call, const Address& where) const {
    return str(address(where), ", ", typed(call), call.peer, ", ");
  }

  const Plan& plan_;
};

}  // namespace

std::string to_text(const std::vector<NcclCall>& calls, const Plan& plan) {
  const Writer writer(plan);
  std::string text;
  for (const NcclCall& call : calls) text += writer.line(call) + "\n";
  return text;
}

}  // namespace cp::runtime
