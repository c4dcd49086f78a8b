#include <algorithm>

#include "shared/base/index.h"
#include "shared/plan/byte_map.h"
#include "shared/plan/check_internal.h"
#include "shared/plan/check_unroll.h"
#include "shared/plan/operations.h"

namespace cp::checker {
namespace {

// Goes through a rank's steps in issue order and keeps, for each byte, who wrote it last and who has read it
// since. A step must happen after all of these that it conflicts with; then every order that the plan allows
// does the same as this one, and what this one reads and leaves unwritten is what they all do. (Flanagan and
// Freund, FastTrack, PLDI 2009.)
class OrderAndContents {
 public:
  void check(const RankPlan& rank) {
    rank_ = &rank;
    unrolled_.assign(rank);
    readers_.clear();
    make_spaces();
    for (Node node = 0; node < unrolled_.size(); ++node) check_node(node);
    check_outputs();
  }

 private:
  // The caller's buffers have a space each, the temporaries one together. An input is never written, so that
  // nothing about it needs to be known.
  static constexpr std::size_t kArena = 0;
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  struct Place {
    std::size_t space = kNone;
    std::int64_t begin_bytes = 0;
  };

  // Sets of nodes as linked lists that share their tails. No member happens before another.
  struct Reader {
    Node node = -1;
    std::int32_t next = -1;
  };

  void make_spaces() {
    places_.clear();
    std::size_t count = 0;
    const auto add_space = [&](std::int64_t size, BufferId owner) {
      if (spaces_.size() == count) spaces_.emplace_back();
      spaces_[count].reset(size, {.owner = owner});
      return count++;
    };
    // The arena is one space, so that temporaries which share bytes meet there. Each output and inout has a
    // space of its own. Inputs need none: nobody writes them, and they are written from the start.
    add_space(rank_->plan->arena_bytes, -1);
    for (const Buffer& buffer : rank_->plan->buffers) {
      const auto id = static_cast<BufferId>(places_.size());
      Place place;
      switch (buffer.kind) {
        case BufferKind::input:
          break;
        case BufferKind::output:
          place = {add_space(buffer.bytes(), -1), 0};
          break;
        case BufferKind::inout:
          place = {add_space(buffer.bytes(), id), 0};
          break;
        case BufferKind::temporary:
          place = {kArena, buffer.offset_bytes};
          break;
      }
      places_.push_back(place);
    }
  }

  // A step reads before it writes.
  void check_node(Node node) {
    const Work& work = unrolled_.ref(node).step->work;
    const std::int32_t index = rank_->index_for(work);
    for_each_access(work, index, [&](const Access& access) {
      if (!access.writes) check_read(node, *access.view);
    });
    for_each_access(work, index, [&](const Access& access) {
      if (access.writes) check_write(node, access);
    });
  }

  // The bytes of a view in its space; none of an input.
  const Place& locate(Node node, const View& view) {
    const Place& place = places_[idx(view.buffer)];
    ranges_.clear();
    if (place.space == kNone) return place;
    const std::int64_t element_bytes = size_bytes(rank_->buffer(view).dtype);
    const std::int64_t offset = offset_at(view, unrolled_.iteration(node));
    byte_ranges(view, place.begin_bytes + offset * element_bytes, element_bytes, ranges_);
    return place;
  }

  void check_read(Node node, const View& view) {
    const Place& place = locate(node, view);
    if (ranges_.empty()) return;
    std::int32_t old_set = -1, new_set = -1;  // neighbouring bytes mostly have the same readers
    spaces_[place.space].visit(ranges_, [&](const ByteRange& range, ByteMap::State& state) {
      require_written(node, view, range, state);
      if (new_set < 0 || state.readers != old_set) {
        old_set = state.readers;
        new_set = with_reader(old_set, node);
      }
      state.readers = new_set;
    });
  }

  void check_write(Node node, const Access& access) {
    const View& view = *access.view;
    const Place& place = locate(node, view);
    if (ranges_.empty()) return;
    spaces_[place.space].visit(ranges_, [&](const ByteRange& range, ByteMap::State& state) {
      if (access.reads) require_written(node, view, range, state);
      if (state.writer >= 0 && !unrolled_.before_or_same(state.writer, node)) {
        fail_unordered(node, "writes", view, range, state.writer, "writes");
      }
      for (std::int32_t r = state.readers; r >= 0; r = readers_[idx(r)].next) {
        const Node reader = readers_[idx(r)].node;
        if (!unrolled_.before_or_same(reader, node))
          fail_unordered(node, "writes", view, range, reader, "reads");
      }
      state = {.owner = view.buffer, .writer = node, .readers = -1};
    });
  }

  // That the bytes hold what was written to this buffer, by a step that has finished by now.
  void require_written(Node node, const View& view, const ByteRange& range,
                       const ByteMap::State& state) const {
    if (state.writer >= 0 && !unrolled_.before_or_same(state.writer, node)) {
      fail_unordered(node, "reads", view, range, state.writer, "writes");
    }
    if (state.owner == view.buffer) return;
    if (state.owner < 0) {
      fail(node_text(node), " reads ", elements_text(view.buffer, range), ", which nothing has written");
    }
    fail(node_text(node), " reads ", elements_text(view.buffer, range), ", but ", node_text(state.writer),
         " wrote ", elements_text(state.owner, range), " into the same bytes of the arena");
  }

  std::int32_t with_reader(std::int32_t set, Node node) {
    // Readers that happen before this one are dropped: whoever must come behind this one comes behind them,
    // too. So sets stay as small as the number of streams.
    std::int32_t result = -1;
    for (std::int32_t r = set; r >= 0; r = readers_[idx(r)].next) {
      const Node other = readers_[idx(r)].node;
      if (!unrolled_.before_or_same(other, node)) result = add_reader(other, result);
    }
    return add_reader(node, result);
  }
  std::int32_t add_reader(Node node, std::int32_t next) {
    readers_.push_back({node, next});
    return static_cast<std::int32_t>(readers_.size() - 1);
  }

  void check_outputs() {
    for (std::size_t id = 0; id < places_.size(); ++id) {
      const Buffer& buffer = rank_->plan->buffers[id];
      if (buffer.kind != BufferKind::output || buffer.numel == 0) continue;
      const ByteRange whole{0, buffer.bytes()};
      spaces_[places_[id].space].visit(
          std::span(&whole, 1), [&](const ByteRange& range, const ByteMap::State& state) {
            if (state.owner < 0)
              fail("no step writes ", elements_text(static_cast<BufferId>(id), range), " of the outputs");
          });
    }
  }

  // ---- words for messages ----

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw CheckFailure(str("rank ", rank_->plan->self, ": ", parts...), {.rank = rank_->plan->self});
  }

  [[noreturn]] void fail_unordered(Node node, std::string_view does, const View& view, const ByteRange& range,
                                   Node other, std::string_view did) const {
    const std::vector<std::string>& streams = rank_->plan->streams;
    fail(node_text(node), " on stream ", streams[idx(unrolled_.ref(node).step->stream)], " ", does, " ",
         elements_text(view.buffer, range), ", which ", node_text(other), " on stream ",
         streams[idx(unrolled_.ref(other).step->stream)], " ", did, "; no edge orders the two");
  }

  std::string node_text(Node node) const {
    const StepRef& ref = unrolled_.ref(node);
    const std::string turn = ref.count > 1 ? str(" (iteration ", unrolled_.iteration(node), ")") : "";
    return str(step_text(*rank_->plan, ref.id), turn);
  }

  // "x[4, 8)", in elements, of which parts may lie outside of the range.
  std::string elements_text(BufferId id, const ByteRange& range) const {
    const Buffer& buffer = rank_->plan->buffers[idx(id)];
    const std::int64_t begin = places_[idx(id)].begin_bytes, size = size_bytes(buffer.dtype);
    const std::int64_t first = std::max<std::int64_t>(range.begin - begin, 0) / size;
    const std::int64_t last = std::min(ceil_div(range.end - begin, size), buffer.numel);
    return str(buffer.name, "[", first, ", ", last, ")");
  }

  const RankPlan* rank_ = nullptr;
  Unrolled unrolled_;
  std::vector<ByteMap> spaces_;
  std::vector<Place> places_;  // by BufferId
  std::vector<Reader> readers_;
  std::vector<ByteRange> ranges_;
};

}  // namespace

void check_order_and_contents(const World& world) {
  OrderAndContents rules;
  for (const RankPlan& rank : world.ranks) rules.check(rank);
}

}  // namespace cp::checker
