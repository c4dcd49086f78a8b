#include "runtime/nccl/nccl_prepared.h"

namespace cp::runtime {

WatchedCollective NcclPrepared::begin(const Collective& collective, NcclCommunicator& member, StepId step,
                                      StreamId stream, const StepEvents::Pair& pair) {
  const BegunCollectives::Point point = member.begun.begin(digests.at(static_cast<std::size_t>(step)));
  ++under_way;
  return {.plan = plan,
          .collective = &collective,
          .communicator = &member,
          .stream = stream,
          .step = step,
          .number = point.number,
          .sequence = point.sequence,
          .digest = point.digest,
          .begin = pair.begin,
          .end = pair.end,
          .planned = longest,
          .under_way = &under_way};
}

}  // namespace cp::runtime
