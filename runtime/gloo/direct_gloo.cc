#include "runtime/gloo/direct_gloo.h"

#include <cstdint>
#include <vector>

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

namespace cp::runtime {

struct DirectGloo::State {
  int rank = 0, num_ranks = 0;
  std::shared_ptr<gloo::rendezvous::Context> context;
  std::uint32_t tag = 0;
};

DirectGloo::DirectGloo(Rank rank, int num_ranks, const std::string& store_directory)
    : state_(std::make_unique<State>(
          State{rank, num_ranks, std::make_shared<gloo::rendezvous::Context>(rank, num_ranks)})) {
  gloo::rendezvous::FileStore files(store_directory);
  gloo::rendezvous::PrefixStore store("direct", files);
  auto transport = gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr("127.0.0.1"));
  state_->context->connectFullMesh(store, transport);
}

DirectGloo::~DirectGloo() = default;

void DirectGloo::barrier() {
  gloo::BarrierOptions options(state_->context);
  options.setTag(++state_->tag);
  gloo::barrier(options);
}

void DirectGloo::all_gather(float* in, float* out, std::size_t numel) {
  gloo::AllgatherOptions options(state_->context);
  options.setInput(in, numel);
  options.setOutput(out, numel * static_cast<std::size_t>(state_->num_ranks));
  options.setTag(++state_->tag);
  gloo::allgather(options);
}

void DirectGloo::all_reduce(float* in, float* out, std::size_t numel) {
  using Reduce = void (*)(void*, const void*, const void*, std::size_t);
  gloo::AllreduceOptions options(state_->context);
  options.setInput(in, numel);
  options.setOutput(out, numel);
  options.setReduceFunction(static_cast<Reduce>(&gloo::sum<float>));
  options.setTag(++state_->tag);
  gloo::allreduce(options);
}

void DirectGloo::exchange(float* in, float* out, std::size_t numel) {
  // The same slots as in gloo_communicator.cc: the prefix is above those of Gloo's own collectives.
  const std::uint64_t slot = (std::uint64_t{0x80} << 56) | (std::uint64_t{++state_->tag} << 24);
  std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> sends, recvs;
  for (int peer = 0; peer < state_->num_ranks; ++peer) {
    if (peer == state_->rank) continue;
    const std::size_t at = static_cast<std::size_t>(peer) * numel;
    sends.push_back(state_->context->createUnboundBuffer(in + at, numel * sizeof(float)));
    sends.back()->send(peer, slot);
    recvs.push_back(state_->context->createUnboundBuffer(out + at, numel * sizeof(float)));
    recvs.back()->recv(peer, slot);
  }
  for (const auto& send : sends) send->waitSend();
  for (const auto& recv : recvs) recv->waitRecv();
}

}  // namespace cp::runtime
