#include "sim/fabric/movement.h"

#include <algorithm>
#include <cstring>

#include "shared/kernels/host_kernels.h"

namespace cp::sim {
namespace {

// A reduced block this large is still in the cache when it is copied to the members.
constexpr std::int64_t kReduceBlockBytes = 65'536;

struct Range {
  std::int64_t begin, end;
};

Range part_of(std::int64_t total, std::int32_t part, std::int32_t parts) {
  return {total * part / parts, total * (part + 1) / parts};
}

// In-place forms give the same address twice: then there is nothing to move.
void copy_bytes(std::byte* out, const std::byte* in, std::int64_t bytes) {
  if (bytes > 0 && out != in) std::memcpy(out, in, static_cast<std::size_t>(bytes));
}

const Call& call_of(const Communicator& communicator, std::int32_t index) {
  return communicator.slot(index).call;
}

std::int64_t block_bytes(const Call& call) { return call.count * size_bytes(call.dtype); }

void reduce_inputs(const Communicator& communicator, std::int64_t offset_bytes, std::byte* out,
                   std::int64_t numel, std::vector<const std::byte*>& inputs) {
  inputs.clear();
  for (std::int32_t index = 0; index < communicator.size(); ++index) {
    inputs.push_back(call_of(communicator, index).in + offset_bytes);
  }
  const Call& call = call_of(communicator, 0);
  reduce(*call.reduction, call.dtype, inputs, out, numel);
}

void all_reduce(const Communicator& communicator, Range elements, std::vector<const std::byte*>& inputs) {
  const Call& first = call_of(communicator, 0);
  const std::int64_t element_bytes = size_bytes(first.dtype), block = kReduceBlockBytes / element_bytes;
  for (std::int64_t begin = elements.begin; begin < elements.end; begin += block) {
    const std::int64_t numel = std::min(block, elements.end - begin), offset = begin * element_bytes;
    reduce_inputs(communicator, offset, first.out + offset, numel, inputs);
    for (std::int32_t to = 1; to < communicator.size(); ++to) {
      copy_bytes(call_of(communicator, to).out + offset, first.out + offset, numel * element_bytes);
    }
  }
}

void reduce_scatter(const Communicator& communicator, Range receivers,
                    std::vector<const std::byte*>& inputs) {
  for (std::int64_t to = receivers.begin; to < receivers.end; ++to) {
    const Call& call = call_of(communicator, static_cast<std::int32_t>(to));
    if (call.count > 0) reduce_inputs(communicator, to * block_bytes(call), call.out, call.count, inputs);
  }
}

void all_gather(const Communicator& communicator, Range receivers) {
  for (std::int64_t to = receivers.begin; to < receivers.end; ++to) {
    std::byte* out = call_of(communicator, static_cast<std::int32_t>(to)).out;
    for (std::int32_t from = 0; from < communicator.size(); ++from) {
      const Call& source = call_of(communicator, from);
      copy_bytes(out + from * block_bytes(source), source.in, block_bytes(source));
    }
  }
}

void all_to_all(const Communicator& communicator, Range receivers) {
  for (std::int64_t to = receivers.begin; to < receivers.end; ++to) {
    std::byte* out = call_of(communicator, static_cast<std::int32_t>(to)).out;
    for (std::int32_t from = 0; from < communicator.size(); ++from) {
      const Call& source = call_of(communicator, from);
      copy_bytes(out + from * block_bytes(source), source.in + to * block_bytes(source), block_bytes(source));
    }
  }
}

void broadcast(const Communicator& communicator, Range receivers) {
  const Call& root = call_of(communicator, call_of(communicator, 0).root);
  for (std::int64_t to = receivers.begin; to < receivers.end; ++to) {
    copy_bytes(call_of(communicator, static_cast<std::int32_t>(to)).out, root.in, block_bytes(root));
  }
}

void exchange(Communicator& communicator, Range receivers) {
  for (std::int64_t to = receivers.begin; to < receivers.end; ++to) {
    for (TransferCall& recv : communicator.slot(static_cast<std::int32_t>(to)).call.exchange->recvs) {
      const std::int64_t bytes = recv.partner->numel * size_bytes(recv.partner->dtype);
      copy_bytes(recv.data, recv.partner->data, bytes);
      recv.delivered_bytes = recv.partner->delivered_bytes = bytes;
    }
  }
}

}  // namespace

std::int64_t work_bytes(const Communicator& communicator) {
  const Call& call = call_of(communicator, 0);
  const std::int64_t n = communicator.size();
  switch (call.operation) {
    case Operation::all_gather:
    case Operation::reduce_scatter:
    case Operation::all_to_all:
      return n * n * block_bytes(call);
    case Operation::all_reduce:
      return 2 * n * block_bytes(call);
    case Operation::broadcast:
      return n * block_bytes(call);
    case Operation::exchange:
      break;
  }
  std::int64_t bytes = 0;
  for (std::int32_t index = 0; index < communicator.size(); ++index) {
    for (const TransferCall& recv : call_of(communicator, index).exchange->recvs) {
      bytes += recv.numel * size_bytes(recv.dtype);
    }
  }
  return bytes;
}

void move_part(Communicator& communicator, std::int32_t part, std::int32_t parts,
               std::vector<const std::byte*>& inputs) {
  const Call& call = call_of(communicator, 0);
  const Range receivers = part_of(communicator.size(), part, parts);
  switch (call.operation) {
    case Operation::all_gather:
      return all_gather(communicator, receivers);
    case Operation::reduce_scatter:
      return reduce_scatter(communicator, receivers, inputs);
    case Operation::all_reduce:
      return all_reduce(communicator, part_of(call.count, part, parts), inputs);
    case Operation::all_to_all:
      return all_to_all(communicator, receivers);
    case Operation::broadcast:
      return broadcast(communicator, receivers);
    case Operation::exchange:
      return exchange(communicator, receivers);
  }
}

}  // namespace cp::sim
