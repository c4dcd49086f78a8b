// Order: what is known to happen before what among the steps of one plan, and the edges that make it so.
//
// Each instance of a step (one iteration of it) has a position in issue order. Its clock says for each stream
// the latest position that has finished before the instance starts; since streams are FIFOs, everything
// before that has finished too. (Vector clocks: Mattern, "Virtual Time and Global States of Distributed
// Systems", 1989.)
//
// Of a Repeat only as many iterations get positions as its edges and their transitive effects need: what
// holds between neighbouring iterations there holds between all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "shared/plan/plan.h"

namespace cp {

using Position = std::int32_t;
inline constexpr Position kNoPosition = -1;

class Order {
 public:
  struct Place {
    StreamId stream = 0;
    Position first = 0, last = 0;                  // of the step's first and last instance
    Position segment_first = 0, segment_last = 0;  // of its Repeat as a whole
  };

  const Place& place(StepId step) const { return places_[static_cast<std::size_t>(step)]; }
  Position num_positions() const { return num_positions_; }
  // All steps run on one stream: issue order is everything, and there are no clocks.
  bool one_stream() const { return num_streams_ == 1; }
  StreamId num_streams() const { return num_streams_; }
  // The latest position on `stream` that has finished before the instance at `position` starts; kNoPosition
  // if none.
  Position clock(Position position, StreamId stream) const {
    return clocks_[static_cast<std::size_t>(position) * static_cast<std::size_t>(num_streams_) +
                   static_cast<std::size_t>(stream)];
  }
  // The first position after `position` on the stream; num_positions() if none. Not for plans of one stream.
  Position next_on(StreamId stream, Position position) const;

 private:
  friend class EdgeDeriver;
  std::vector<Place> places_;
  std::vector<Position> clocks_;                  // by position, then stream
  std::vector<std::vector<Position>> on_stream_;  // positions by stream, ascending
  Position num_positions_ = 0;
  StreamId num_streams_ = 1;
};

// Replaces the edges of all steps: two steps on different streams that touch a common element, at least one
// of them writing, are ordered as they were issued, in every iteration of their Repeats. No edge is written
// that streams and other edges imply.
Order derive_edges(Plan& plan);

}  // namespace cp
