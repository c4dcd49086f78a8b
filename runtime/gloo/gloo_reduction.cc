#include "runtime/gloo/gloo_reduction.h"

#include <algorithm>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/base/text.h"
#include "shared/kernels/host_kernels.h"

namespace cp::runtime {
namespace {

// The largest piece. Chosen between two costs: a wait for a peer takes some ten microseconds (estimated),
// which smaller pieces would pay more often; and a piece should still be in the cache when it is reduced.
constexpr std::int64_t kMostPieceBytes = std::int64_t{512} << 10;
// Rooms begin at cache lines, which have 64 bytes on x86.
constexpr std::int64_t kRoomAlignment = 64;

struct Span {
  std::int64_t begin = 0, count = 0;  // elements
};

}  // namespace

// The factor 2: pieces of even and of odd number have rooms of their own.
std::int64_t reduced_piece_bytes(std::int64_t size) {
  const std::int64_t room = kMostStagingBytes / (2 * std::max<std::int64_t>(size - 1, 1));
  return std::clamp(room / kRoomAlignment * kRoomAlignment, kRoomAlignment, kMostPieceBytes);
}

struct GlooReduction::Call {
  ReduceOp op = ReduceOp::sum;
  DType dtype = DType::f32;
  std::byte* in = nullptr;
  std::byte* out = nullptr;  // of the first element of this member's part
  std::int64_t count = 0;    // of all parts
  std::uint64_t slot = 0;
  const OnTransfer* on_transfer = nullptr;
  std::unique_ptr<UnboundBuffer> values = {}, results = {};
  std::int64_t sent = 0, results_sent = 0, results_wanted = 0;  // transfers
  std::int64_t results_here = 0;                                // elements

  // The first count % size parts have one element more.
  Span part(std::int32_t member, std::int32_t size) const {
    const std::int64_t each = count / size, more = count % size;
    return {member * each + std::min<std::int64_t>(member, more), each + (member < more ? 1 : 0)};
  }
  // A piece of a part, if pieces have `most` elements. It is empty if this part ends before.
  static Span piece_of(const Span& part, std::int64_t piece, std::int64_t most) {
    return {part.begin + piece * most, std::clamp<std::int64_t>(part.count - piece * most, 0, most)};
  }
};

GlooReduction::GlooReduction(std::shared_ptr<gloo::Context> context, std::int32_t index, std::int32_t size)
    : context_(std::move(context)), index_(index), size_(size), addends_(idx(size)) {}

std::int64_t GlooReduction::part_bytes(DType dtype, std::int64_t count) const {
  return (count + size_ - 1) / size_ * size_bytes(dtype);
}

void GlooReduction::reserve(std::int64_t part_bytes) {
  const std::int64_t room = std::min(reduced_piece_bytes(size_),
                                     (part_bytes + kRoomAlignment - 1) / kRoomAlignment * kRoomAlignment);
  if (size_ == 1 || room <= room_bytes_) return;
  for (auto& buffer : arriving_) buffer.reset();
  room_bytes_ = room;
  CP_INVARIANT(staging_bytes() <= kMostStagingBytes, size_, " members reduce in pieces of ", room,
               " bytes, which takes ", staging_bytes(), " bytes; at most ", kMostStagingBytes,
               " are declared");
  staging_.reset();
  // make_unique fills the memory with zeros, so that no page fault happens in a run.
  staging_ = std::make_unique<std::byte[]>(idx(staging_bytes()));
  for (std::size_t i = 0; i < arriving_.size(); ++i)
    arriving_[i] =
        unbound(staging_.get() + static_cast<std::int64_t>(i) * (staging_bytes() / 2), staging_bytes() / 2);
}

std::unique_ptr<gloo::transport::UnboundBuffer> GlooReduction::unbound(std::byte* data,
                                                                       std::int64_t size_bytes) const {
  return context_->createUnboundBuffer(data, idx(size_bytes));
}

void GlooReduction::reduce_scatter(ReduceOp op, DType dtype, std::byte* in, std::byte* out,
                                   std::int64_t count, std::uint64_t slot, const OnTransfer& on_transfer) {
  Call call{.op = op, .dtype = dtype, .in = in, .out = out, .count = size_ * count, .slot = slot};
  call.on_transfer = &on_transfer;
  run(call);
}

std::int64_t GlooReduction::all_reduce(ReduceOp op, DType dtype, std::byte* in, std::byte* out,
                                       std::int64_t count, std::uint64_t slot) {
  Call call{.op = op, .dtype = dtype, .in = in, .out = out, .count = count, .slot = slot};
  call.out += call.part(index_, size_).begin * size_bytes(dtype);
  if (size_ > 1) call.results = unbound(out, count * size_bytes(dtype));
  run(call);
  return call.results_here;
}

void GlooReduction::run(Call& call) {
  if (call.count == 0) return;
  const std::int64_t element_bytes = size_bytes(call.dtype);
  if (size_ > 1) call.values = unbound(call.in, call.count * element_bytes);
  // No part is longer than the first. While piece i arrives, piece i - 1 is reduced.
  const std::int64_t piece = reduced_piece_bytes(size_) / element_bytes;
  const std::int64_t pieces = (call.part(0, size_).count + piece - 1) / piece;
  for (std::int64_t i = 0; i <= pieces; ++i) {
    if (i < pieces) post(call, i);
    if (i > 0) finish(call, i - 1);
  }
  for (; call.sent > 0; --call.sent) call.values->waitSend();
  for (; call.results_wanted > 0; --call.results_wanted) call.results->waitRecv();
  for (; call.results_sent > 0; --call.results_sent) call.results->waitSend();
}

// Sends and receives are posted in turn, because a transfer begins only when both sides are posted. Each
// member begins with its neighbour, so that nobody gets the first transfers of all others.
void GlooReduction::post(Call& call, std::int64_t number) {
  const std::int64_t element_bytes = size_bytes(call.dtype),
                     most = reduced_piece_bytes(size_) / element_bytes;
  const Span own = Call::piece_of(call.part(index_, size_), number, most);
  CP_INVARIANT(size_ == 1 || own.count * element_bytes <= room_bytes_, own.count * element_bytes,
               " bytes of each member, reserved are ", room_bytes_);
  UnboundBuffer* arriving = arriving_[idx(number % 2)].get();
  for (std::int32_t step = 1; step < size_; ++step) {
    const std::int32_t to = (index_ + step) % size_, from = (index_ - step + size_) % size_;
    if (own.count > 0) {
      if (call.on_transfer != nullptr) (*call.on_transfer)(false, from, own.count);
      arriving->recv(from, call.slot, idx(room_of(from) * room_bytes_), idx(own.count * element_bytes));
    }
    const Span theirs = Call::piece_of(call.part(to, size_), number, most);
    if (theirs.count > 0) {
      if (call.on_transfer != nullptr) (*call.on_transfer)(true, to, theirs.count);
      call.values->send(to, call.slot, idx(theirs.begin * element_bytes), idx(theirs.count * element_bytes));
      ++call.sent;
    }
    if (call.results == nullptr) continue;
    const Span result = Call::piece_of(call.part(from, size_), number, most);
    if (result.count == 0) continue;
    call.results->recv(from, call.slot + 1, idx(result.begin * element_bytes),
                       idx(result.count * element_bytes));
    ++call.results_wanted;
    call.results_here += result.count;
  }
}

void GlooReduction::finish(Call& call, std::int64_t number) {
  const std::int64_t element_bytes = size_bytes(call.dtype);
  const Span part = call.part(index_, size_);
  const Span own = Call::piece_of(part, number, reduced_piece_bytes(size_) / element_bytes);
  if (own.count == 0) return;
  UnboundBuffer* arriving = arriving_[idx(number % 2)].get();
  for (std::int32_t i = 1; i < size_; ++i) arriving->waitRecv();
  for (std::int32_t member = 0; member < size_; ++member) {
    addends_[idx(member)] = member == index_
                                ? call.in + own.begin * element_bytes
                                : static_cast<std::byte*>(arriving->ptr) + room_of(member) * room_bytes_;
  }
  reduce(call.op, call.dtype, addends_, call.out + (own.begin - part.begin) * element_bytes, own.count);
  call.results_here += own.count;
  if (call.results == nullptr) return;
  for (std::int32_t step = 1; step < size_; ++step) {
    call.results->send((index_ + step) % size_, call.slot + 1, idx(own.begin * element_bytes),
                       idx(own.count * element_bytes));
    ++call.results_sent;
  }
}

}  // namespace cp::runtime
