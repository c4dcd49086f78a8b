// Damage to what ranks send each other, in exchanges that match all the same.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/proof/plan_damage.h"

namespace cp::testing {

// Two messages of one exchange, of equal size and to two peers, each sent to the other.
inline std::vector<Damage> send_to_each_other(std::vector<Plan>& plans) {
  std::vector<Damage> damages;
  for_each<Exchange>(plans, [&](Plan& plan, StepId id, Step& step, Exchange& op) {
    if (step.label.find("k, v") != std::string::npos) return;  // two peers may get the same rows
    for (std::size_t i = 0; i < op.sends.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        const View &a = op.sends[i].view, &b = op.sends[j].view;
        const auto dtype = [&](const View& v) {
          return plan.buffers[static_cast<std::size_t>(v.buffer)].dtype;
        };
        if (op.sends[i].peer == op.sends[j].peer || a.numel() != b.numel() || dtype(a) != dtype(b) || a == b)
          continue;
        damages.push_back({str(at(plan, id), "sends ", j, " and ", i), {" of batch "}, [&op, i, j] {
                             std::swap(op.sends[i].view, op.sends[j].view);
                           }});
      }
    }
  });
  return damages;
}
// Two messages from one peer, each stored in the other's place.
inline std::vector<Damage> store_for_each_other(std::vector<Plan>& plans) {
  std::vector<Damage> damages;
  for_each<Exchange>(plans, [&](Plan& plan, StepId id, Step&, Exchange& op) {
    for (std::size_t i = 0; i < op.recvs.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        View &a = op.recvs[i].view, &b = op.recvs[j].view;
        if (op.recvs[i].peer != op.recvs[j].peer || a.numel() != b.numel()) continue;
        damages.push_back(
            {str(at(plan, id), "recvs ", j, " and ", i), {" of batch "}, [&a, &b] { std::swap(a, b); }});
      }
    }
  });
  return damages;
}

// A message of constants, from the first member to the second.
inline std::vector<Damage> send_constants(std::vector<Plan>& plans) {
  std::vector<Damage> damages;
  for (const Meeting& meeting : meetings(plans)) {
    damages.push_back({at(*meeting.plans[0], meeting.ids[0]),
                       {str("rank ", meeting.plans[1]->self, " received 28 bytes of padding")},
                       [meeting] {
                         Meeting moved = meeting;
                         const StepId id = moved.ids[0]++;
                         const View sent = add_temporary(*moved.plans[0], DType::f32, 7, id, id);
                         Step fill;
                         fill.stream =
                             std::get<Step>(moved.plans[0]->segments[static_cast<std::size_t>(id)]).stream;
                         fill.work = Kernel{Fill{sent, 0}};
                         insert_step(*moved.plans[0], id, std::move(fill));
                         moved.plans[0]->buffers[static_cast<std::size_t>(sent.buffer)].first_use = id;
                         const View stored =
                             add_temporary(*moved.plans[1], DType::f32, 7, moved.ids[1], moved.ids[1]);
                         moved.op(0).sends.push_back({1, sent});
                         moved.op(1).recvs.push_back({0, stored});
                         moved.count_again();
                       }});
  }
  return damages;
}
// A message, and the memory that it comes from and goes to, four elements longer.
inline std::vector<Damage> widen(std::vector<Plan>& plans) {
  std::vector<Damage> damages;
  for (const Meeting& meeting : meetings(plans)) {
    for (std::size_t from = 0; from < meeting.plans.size(); ++from) {
      std::map<std::int32_t, std::size_t> nth;
      for (std::size_t i = 0; i < meeting.op(from).sends.size(); ++i) {
        const Transfer& send = meeting.op(from).sends[i];
        const auto to = static_cast<std::size_t>(send.peer);
        std::vector<Transfer>& recvs = meeting.op(to).recvs;
        std::size_t skip = nth[send.peer]++;
        const auto recv = std::find_if(recvs.begin(), recvs.end(), [&](const Transfer& t) {
          return t.peer == static_cast<std::int32_t>(from) && skip-- == 0;
        });
        const auto room = [](const Plan& plan, const View& v) {
          return plan.buffers[static_cast<std::size_t>(v.buffer)].numel - v.offset - v.numel();
        };
        const std::int64_t more =
            std::min(room(*meeting.plans[from], send.view), room(*meeting.plans[to], recv->view));
        if (more < 4) continue;
        const View wide_send = flat_view(send.view.buffer, send.view.offset, send.view.numel() + 4);
        const View wide_recv = flat_view(recv->view.buffer, recv->view.offset, recv->view.numel() + 4);
        damages.push_back({str(at(*meeting.plans[from], meeting.ids[from]), "send ", i),
                           {str("rank ", meeting.plans[to]->self, " received ")},
                           [=, j = recv - recvs.begin()] {
                             meeting.op(from).sends[i].view = wide_send;
                             meeting.op(to).recvs[static_cast<std::size_t>(j)].view = wide_recv;
                             meeting.count_again();
                           }});
      }
    }
  }
  return damages;
}

// One more message from each member of an exchange to the next: the last elements of the input of that name.
inline std::vector<Damage> send_input(std::vector<Plan>& plans, std::string_view name, std::int64_t numel) {
  std::vector<Damage> damages;
  for (const Meeting& meeting : meetings(plans)) {
    for (std::size_t from = 0; from < meeting.plans.size(); ++from) {
      const std::size_t to = (from + 1) % meeting.plans.size();
      const std::vector<Buffer>& buffers = meeting.plans[from]->buffers;
      const auto found =
          std::find_if(buffers.begin(), buffers.end(), [&](const Buffer& b) { return b.name == name; });
      if (found == buffers.end() || found->kind != BufferKind::input || found->numel < numel) continue;
      const View sent =
          flat_view(static_cast<BufferId>(found - buffers.begin()), found->numel - numel, numel);
      damages.push_back({str(at(*meeting.plans[from], meeting.ids[from]), "sends more"),
                         {str("rank ", meeting.plans[to]->self, " received "), str("bytes of ", name)},
                         [meeting, from, to, sent, dtype = found->dtype] {
                           const View stored = add_temporary(*meeting.plans[to], dtype, sent.numel(),
                                                             meeting.ids[to], meeting.ids[to]);
                           meeting.op(from).sends.push_back({static_cast<std::int32_t>(to), sent});
                           meeting.op(to).recvs.push_back({static_cast<std::int32_t>(from), stored});
                           meeting.count_again();
                         }});
    }
  }
  return damages;
}

}  // namespace cp::testing
