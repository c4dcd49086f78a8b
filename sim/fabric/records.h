// DeliveryLog: what the collectives of one rank delivered. While ranks run it keeps short entries only;
// flush_to() makes full OpRecords of them when somebody reads the trace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "shared/plan/trace.h"
#include "sim/fabric/communicator.h"

namespace cp::sim {

class DeliveryLog {
 public:
  // Notes that a collective has been delivered to the member `index`, as its call in the slot says after the
  // bytes have moved.
  void add(StreamId stream, const Communicator& communicator, std::int32_t index);

  // Appends a record of each delivery to `observed`, in the order of add(), and forgets them.
  void flush_to(std::vector<OpRecord>& observed);
  void clear();

 private:
  struct Delivery {
    const Communicator* communicator = nullptr;
    std::int64_t sequence = 0;
    std::int64_t block_bytes = 0;  // for each peer; an exchange has its bytes in peers_
    std::size_t peers_begin = 0, sends_end = 0, recvs_end = 0;
    StreamId stream = 0;
    std::int32_t index = 0, root = -1;
    Operation operation = Operation::all_gather;
    DType dtype = DType::f32;
    std::optional<ReduceOp> reduction = {};
    std::size_t tracked = kNotTracked;  // index into tracked_
  };
  // What is kept beside of a collective that was done transfer by transfer (transfers.h): bytes by member.
  struct Tracked {
    std::vector<std::int64_t> sent, received;
    std::optional<PayloadChecksums> checksums;
  };
  static constexpr std::size_t kNotTracked = static_cast<std::size_t>(-1);
  static void spell_out(const Delivery& delivery, OpRecord& record);

  std::vector<Delivery> deliveries_;
  std::vector<Tracked> tracked_;
  std::vector<std::pair<std::int32_t, std::int64_t>> peers_;  // of exchanges: the peer's index, bytes
};

}  // namespace cp::sim
