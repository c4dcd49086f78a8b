// Symmetric memory: what copy engines of one rank write on another lies where that rank expects it.
#include <algorithm>

#include "shared/base/index.h"
#include "shared/plan/canonical.h"
#include "shared/plan/check_internal.h"
#include "shared/plan/operations.h"

namespace cp::checker {
namespace {

// A window of the symmetric segment, in bytes, and how it moves from iteration to iteration.
struct Window {
  std::int64_t begin = 0, end = 0;
  Advance advance;
  bool operator==(const Window&) const = default;
};

// The rules of one plan: its segment holds its symmetric temporaries, apart from one another and from all
// others.
class SegmentRules {
 public:
  explicit SegmentRules(const Plan& plan) : plan_(plan) {}

  void check() const {
    if (plan_.symmetric_bytes < 0 || plan_.symmetric_bytes > plan_.arena_bytes) {
      fail("the symmetric segment of ", plan_.symmetric_bytes, " bytes leaves the arena of ",
           plan_.arena_bytes);
    }
    std::vector<const Buffer*> symmetric;
    for (const Buffer& buffer : plan_.buffers) {
      if (buffer.symmetric) symmetric.push_back(&buffer);
      check_side(buffer);
    }
    std::sort(symmetric.begin(), symmetric.end(),
              [](const Buffer* a, const Buffer* b) { return a->offset_bytes < b->offset_bytes; });
    for (std::size_t i = 1; i < symmetric.size(); ++i) {
      const Buffer &low = *symmetric[i - 1], &high = *symmetric[i];
      if (low.offset_bytes + low.bytes() > high.offset_bytes) {
        fail("the symmetric temporaries ", low.name, " and ", high.name,
             " share bytes; other ranks write them whenever their own plans say so");
      }
    }
  }

 private:
  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw CheckFailure(str("rank ", plan_.self, ": ", parts...), {.rank = plan_.self});
  }

  void check_side(const Buffer& buffer) const {
    if (buffer.symmetric && buffer.kind != BufferKind::temporary)
      fail("buffer ", buffer.name,
           " is symmetric and the caller's; only temporaries have a place to agree on");
    if (buffer.kind != BufferKind::temporary || buffer.numel == 0) return;
    const std::int64_t end = buffer.offset_bytes + buffer.bytes();
    if (buffer.symmetric ? end <= plan_.symmetric_bytes
                         : buffer.offset_bytes >= plan_.symmetric_bytes || buffer.first_use < 0)
      return;
    fail(buffer.symmetric ? "symmetric" : "other", " temporary ", buffer.name, " at arena bytes [",
         buffer.offset_bytes, ", ", end, ") lies ", buffer.symmetric ? "outside" : "inside",
         " of the symmetric segment of ", plan_.symmetric_bytes, " bytes");
  }

  const Plan& plan_;
};

// The members of a communicator with copy engines, against the first one.
class Members {
 public:
  Members(const World& world, const Communicator& communicator)
      : world_(world), communicator_(communicator) {}

  void check() const {
    for (std::size_t i = 1; i < communicator_.members.size(); ++i) check_segments(i);
    for (std::size_t k = 0; k < calls(0); ++k) check_call(k);
  }

 private:
  const RankPlan& member(std::size_t index) const {
    return world_.ranks[idx(communicator_.members[index].plan)];
  }
  std::size_t calls(std::size_t index) const {
    const std::size_t group = idx(communicator_.members[index].group);
    return idx(member(index).group_begin[group + 1] - member(index).group_begin[group]);
  }
  const CollectiveRef& call(std::size_t index, std::size_t k) const {
    const RankPlan& rank = member(index);
    const std::size_t begin = idx(rank.group_begin[idx(communicator_.members[index].group)]);
    return rank.collectives[idx(rank.by_group[begin + k])];
  }
  template <class... Parts>
  [[noreturn]] void fail(std::size_t index, StepId step, const Parts&... parts) const {
    throw CheckFailure(
        str(parts...),
        {.group = canonical_name(*communicator_.group), .rank = member(index).plan->self, .step = step});
  }

  void check_segments(std::size_t index) const {
    const Plan &first = *member(0).plan, &other = *member(index).plan;
    const auto places = [](const Plan& plan) {
      std::vector<std::pair<std::int64_t, std::int64_t>> all;  // offset and size
      for (const Buffer& buffer : plan.buffers) {
        if (buffer.symmetric) all.emplace_back(buffer.offset_bytes, buffer.bytes());
      }
      std::sort(all.begin(), all.end());
      return all;
    };
    const auto a = places(first), b = places(other);
    if (first.symmetric_bytes != other.symmetric_bytes) {
      fail(index, -1, "rank ", first.self, "'s symmetric segment has ", first.symmetric_bytes,
           " bytes, rank ", other.self, "'s ", other.symmetric_bytes, ", in group ",
           text(*communicator_.group), "; add equally large symmetric temporaries on all ranks");
    }
    if (a == b) return;
    std::size_t at = 0;
    while (at < a.size() && at < b.size() && a[at] == b[at]) ++at;
    const auto words = [&](const auto& all) {
      return at < all.size() ? str(all[at].second, " bytes at ", all[at].first) : std::string("none");
    };
    fail(index, -1, "symmetric temporary ", at, " in group ", text(*communicator_.group), ": rank ",
         first.self, " has ", words(a), ", rank ", other.self, " ", words(b),
         "; add equally large ones in the same order on all ranks");
  }

  Window window(std::size_t index, const View& view) const {
    const Buffer& buffer = member(index).buffer(view);
    const std::int64_t size = size_bytes(buffer.dtype);
    const std::int64_t begin = buffer.offset_bytes + view.offset * size;
    Advance advance = view.advance;
    advance.stride *= size;
    return {begin, begin + view.numel() * size, advance};
  }
  static std::string words(const Window& window) {
    return str("[", window.begin, ", ", window.end, ")",
               window.advance.stride == 0 ? "" : str(" advancing by ", window.advance.stride));
  }

  void check_call(std::size_t k) const {
    if (std::holds_alternative<Exchange>(*call(0, k).work)) return check_puts(k);
    for (std::size_t i = 1; i < communicator_.members.size(); ++i) {
      std::vector<Window> first = windows(0, k), other = windows(i, k);
      if (first == other) continue;
      const std::size_t at = first.front() == other.front() ? 1 : 0;
      fail(i, call(i, k).step, "rank ", member(i).plan->self, "'s ",
           step_text(*member(i).plan, call(i, k).step), " (", collective_text(member(0), call(0, k)),
           ") has its ", at == 0 ? "in" : "out", " at symmetric bytes ", words(other[at]), ", rank ",
           member(0).plan->self, " at ", words(first[at]), "; copy engines need equal places on all ranks");
    }
  }
  std::vector<Window> windows(std::size_t index, std::size_t k) const {
    std::vector<Window> all;
    std::visit(
        [&](const auto& op) {
          for_each_access_of(op, static_cast<std::int32_t>(index),
                             [&](const Access& access) { all.push_back(window(index, *access.view)); });
        },
        *call(index, k).work);
    return all;
  }

  // Each put lands just where its receiver expects it. Matching has proved that both sides list the transfers
  // of a pair alike.
  void check_puts(std::size_t k) const {
    for (std::size_t from = 0; from < communicator_.members.size(); ++from) {
      std::vector<std::size_t> done(communicator_.members.size());  // transfers to each peer so far
      for (const Transfer& send : std::get<Exchange>(*call(from, k).work).sends) {
        const std::size_t to = idx(send.peer);
        const View& expected = received(to, k, static_cast<std::int32_t>(from), done[to]++);
        const Window lands = window(from, send.there), place = window(to, expected);
        if (lands == place) continue;
        fail(from, call(from, k).step, "rank ", member(from).plan->self, "'s ",
             step_text(*member(from).plan, call(from, k).step), " writes to rank ", member(to).plan->self,
             " at symmetric bytes ", words(lands), ", but that rank receives it at ", words(place),
             "; let `there` lie where the peer's view does");
      }
    }
  }
  const View& received(std::size_t at, std::size_t k, std::int32_t from, std::size_t number) const {
    for (const Transfer& recv : std::get<Exchange>(*call(at, k).work).recvs) {
      if (recv.peer == from && number-- == 0) return recv.view;
    }
    CP_INVARIANT(false, "a transfer without its other side");
  }

  const World& world_;
  const Communicator& communicator_;
};

}  // namespace

void check_symmetric(const World& world) {
  for (const RankPlan& rank : world.ranks) SegmentRules(*rank.plan).check();
  for (const Communicator& communicator : world.communicators) {
    if (communicator.group->copy_engine) Members(world, communicator).check();
  }
}

}  // namespace cp::checker
