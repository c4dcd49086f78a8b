// Folders by system calls alone: a forked child of a process with threads may call all of these.
#pragma once

namespace cp::runtime {

// Calls visit(context, folder, name) for each entry but . and .., with a descriptor of the folder, until it
// returns false. Whether the folder could be read.
using VisitEntry = bool (*)(void* context, int folder, const char* name);
bool each_entry(const char* path, VisitEntry visit, void* context) noexcept;

template <class F>
bool each_entry(const char* path, F f) noexcept {
  return each_entry(
      path,
      [](void* context, int folder, const char* name) { return (*static_cast<F*>(context))(folder, name); },
      &f);
}

// Removes a folder that holds nothing but files; whether it is gone.
bool remove_flat_folder(const char* path) noexcept;

}  // namespace cp::runtime
