// Routing brings rows and heads straight from their homes to the ranks that use them, and takes results back.
// Internal to shared/context_parallel.
//
// A home member holds all heads of its rows; a user wants some heads of some rows. What arrives has rows
// outermost: home by home, and within one home in the home's local order. So the block of each home is
// contiguous where it arrives, and nothing has to be unpacked. Equal blocks travel by AllToAll, AllGather and
// ReduceScatter, unequal ones by an Exchange of exactly the rows.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shared/context_parallel/attention_writer.h"

namespace cp::detail {

class Routing {
 public:
  struct Member {
    IndexSet held;                   // rows at home
    std::optional<IndexSet> wanted;  // rows that it uses; unset: the rows of all members
  };

  // `self` is the rank's index in the group. If the heads of a tensor are split by user (Ulysses), Heads says
  // which each user has; this depends on the tensor, so it comes with each call.
  Routing(AttentionWriter& writer, Team team, int self, std::vector<Member> members);

  // The rows that arrive at the rank, in the order in which they lie.
  const IndexSet& arriving() const { return arriving_; }

  struct Heads {
    std::vector<Range> of_user;  // by member
    std::int64_t all = 0;
  };
  // All heads, for every user.
  Heads all_heads(std::int64_t heads) const;

  // A tensor at home, and the place where the wanted part arrives.
  struct Transport {
    Tensor home, user;
    Heads heads;
    bool begun = false;  // for sums at home: it holds those of other heads already
  };
  // Moves home → user; all tensors together if one Exchange can carry them.
  void gather(const std::vector<Transport>& transports, const std::string& label);

  // Moves user → home. With `sum`, several users may have contributions to one element; they are added in f32
  // in the order of the members, and home must be f32. Otherwise each element must have one user.
  void give_back(const std::vector<Transport>& transports, bool sum, const std::string& label);
  // The same in two parts: this one sends, and what it returns, called later, writes what has arrived. What
  // the compute stream gets in between does not wait for the transfer. The Routing must live until then.
  using Arrival = std::function<void()>;
  Arrival send_back(const std::vector<Transport>& transports, bool sum, const std::string& label);

 private:
  // The rows that one member holds and another wants, as regular stretches of the home's local rows.
  struct Piece {
    std::vector<Overlap> stretches;
    std::int64_t rows = 0;
    std::int64_t user_begin = 0;  // where they begin at the user; only set if the user is this rank
  };

  Piece piece(int home, int user) const;
  std::int64_t rows_between(int home, int user) const;
  bool wants_all() const;
  // Whether all blocks are equally large and not empty.
  bool all_equal(const std::vector<Transport>& transports) const;
  // The counts of the Exchange that carries all of them. issue() appends the step, unless nobody sends
  // anything.
  std::vector<Count> counts(const std::vector<Transport>& transports, bool to_home) const;
  void issue(Exchange exchange, std::vector<Count> counts, const std::string& label);
  // Elements between this rank as home and a user.
  std::int64_t block_numel(const Transport& transport, int user) const;

  // Views of a piece at home: some heads of the stretch, in the order of rows_outermost.
  View stretch_view(const Tensor& home, const Overlap& stretch, Range heads) const;
  // The piece at home, if it is one block in the order that travels; nothing otherwise.
  std::optional<View> contiguous_at_home(const Transport& transport, int user) const;
  void pack(const Transport& transport, int user, BufferId staging, std::int64_t offset,
            const std::string& label);
  void copy_own(const Transport& transport, const std::string& label);

  void gather_equal(const Transport& transport, const std::string& label);
  // Appends into(view), which writes the user's tensor: at once, or where copy engines can write, and then a
  // copy.
  template <class Make>
  void arrive(const Tensor& user, const std::string& label, const Make& into);
  // The tensor's elements where the collectives can read them.
  View readable(const Tensor& tensor, const std::string& label);
  void gather_by_exchange(const std::vector<Transport>& transports, const std::string& label);
  // What each other user is sent of a tensor. It is packed if it is not in the order that travels.
  std::vector<std::pair<int, View>> sends_of(const Transport& transport, const std::string& label);
  // The ways to send back; `arrive` is called for each part with what is left to do there.
  using Arrive = std::function<void(Arrival)>;
  void send_back(const std::vector<Transport>& transports, bool sum, const std::string& label,
                 const Arrive& arrive);
  Arrival give_back_equal(const Transport& transport, const std::string& label);
  Arrival give_back_by_exchange(const std::vector<Transport>& transports, bool sum, const std::string& label);
  Arrival reduce_scatter(const Transport& transport, const std::string& label);
  void unpack_all(const std::vector<Transport>& transports, const std::vector<BufferId>& stagings, bool sum,
                  const std::string& label);
  // Moves what came from a user, or the rank's own part, to its place at home. What is added is merged there.
  void unpack(const Transport& transport, int user, const View& from, bool add, const std::string& label,
              AttentionWriter::Of of = AttentionWriter::Of::attention);

  std::size_t size() const { return members_.size(); }
  AttentionWriter& writer_;
  Team team_;
  int self_;
  std::vector<Member> members_;
  std::vector<Piece> to_user_, from_home_;  // by the other member: self as home, self as user
  IndexSet arriving_;
};

}  // namespace cp::detail
