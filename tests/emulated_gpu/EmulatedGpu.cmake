# The GPU's code over an emulated GPU: CUDA's runtime interface and NCCL's, implemented on the host (tests/emulated_gpu/*.cc).
#   cp_emulated_runtime     what cp::gpu and cp::runtime are, compiled as C++, without a library of CUDA's
#   emulated_gpu_test       tests/gpu and the tests of the emulation itself, on it
#   emulated_threads_test   those of them that are about threads, for the thread sanitizer
#   gpu_test                tests/gpu on real GPUs; skipped where there is none
#   cprun_emulated          cprun on it, and late_rank_emulated, passes_rank_emulated and
#                           prepared_attention_emulated, programs that it runs in tests
#   gpu_benchmark_emulated  gpu_benchmark on it, where Google Benchmark is installed; its times say nothing

get_property(gpu_sources GLOBAL PROPERTY CP_GPU_SOURCES)
get_property(top_sources GLOBAL PROPERTY CP_RUNTIME_TOP_SOURCES)
# Attention of NVIDIA's is fused_graphs.cc, on the host.
list(FILTER gpu_sources EXCLUDE REGEX "/cuda/(cudnn_[a-z_0-9]*|cublas_[a-z_]*|no_fused_kernels)\\.(cc|cu)$")
list(APPEND gpu_sources ${PROJECT_SOURCE_DIR}/runtime/cuda/no_cublas_matmul.cc ${PROJECT_SOURCE_DIR}/runtime/cuda/fused_kernels.cc)
list(REMOVE_DUPLICATES gpu_sources)
set(cuda_sources ${gpu_sources})
list(FILTER cuda_sources INCLUDE REGEX "\\.cu$")
# Each folder has its own properties of a source, so those for nvcc (runtime/) stay as they are.
set_source_files_properties(${cuda_sources} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-x;c++")
file(GLOB emulation_sources CONFIGURE_DEPENDS "emulated_gpu/*.cc")
cp_add_library(emulated_runtime ${gpu_sources} ${top_sources} ${emulation_sources})
target_compile_definitions(cp_emulated_runtime PUBLIC CP_GPU_EMULATED CP_HAVE_NCCL)
target_link_libraries(cp_emulated_runtime PUBLIC cp::runtime_base cp_cuda_headers)
# Only tests run this, and of attention_backward.cu -O3 takes three times as long to compile as -O2 (56 s and 19 s).
target_compile_options(cp_emulated_runtime PRIVATE $<$<CONFIG:Release>:-O2>)

file(GLOB gpu_test_sources CONFIGURE_DEPENDS "gpu/*.cc")
set(gpu_test_helpers runtime/processes.cc runtime/job_attempts.cc runtime/allocations.cc identity/identity_case.cc identity/scenario_generator.cc
  conformance/device_suite.cc conformance/collectives_conformance_test.cc conformance/streams_conformance_test.cc
  conformance/kept_conformance_test.cc conformance/beside_conformance_test.cc conformance/process_world.cc)
file(GLOB emulation_test_sources CONFIGURE_DEPENDS "emulated_gpu/tests/*.cc")
# What compares or counts at length, in code that shorter tests run under the sanitizers too: kernels against their definitions, kept plans,
# and scenarios on up to three ranks.
string(JOIN ":" slow_under_sanitizers
  "Ranks/NcclIdentity.*/4" "Ranks/NcclIdentity.*/6" "Ranks/NcclIdentity.*/8" "Ranks/NcclIdentity.SoDo*" "NcclDroppedEdges.*" "HostCost.Of*" "*.TenThousand*" "*GpuAttentionRepeat.*"
  "FusedAttentionDefinition.*" "FusedAttentionTest.*/Causal*" "FusedAttentionTest.*/Full*" "FusedAttentionTest.*/DocumentsBottomRight*"
  "FusedAttentionTest.*/Documents_*" "FusedAttentionTest.*/DocumentsFull*" "FusedAttentionTest.*/Window*" "NcclGraphs/DeviceConformance.*"
  "NcclLongAttention.*" "GpuFillAndScale.*")
cp_add_test(emulated_gpu_test SOURCES ${gpu_test_sources} ${gpu_test_helpers} ${emulation_test_sources} rendezvous/test_job.cc
  LIBS cp::cli cp_test_support cp_emulated_runtime LABEL emulated SLOW "${slow_under_sanitizers}")
# Where NCCL keeps communicators in order the device does not, or a double ring (6 ranks) would lock itself.
add_test(NAME NcclDeviceWithLaunchOrder WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
  COMMAND emulated_gpu_test --gtest_filter=NcclDevice.ManyGroups*:*NcclIdentity.*Fabric/6)
set_tests_properties(NcclDeviceWithLaunchOrder PROPERTIES LABELS emulated_slow TIMEOUT 300
  ENVIRONMENT "NCCL_LAUNCH_ORDER_IMPLICIT=1;OPENBLAS_NUM_THREADS=1")
# Where collectives of one rank may overlap, edges between them are needed, too.
add_test(NAME NcclDroppedEdgesOfOverlappingCollectives WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
  COMMAND emulated_gpu_test --gtest_filter=NcclDroppedEdges.*)
set_tests_properties(NcclDroppedEdgesOfOverlappingCollectives PROPERTIES LABELS emulated_slow TIMEOUT 600
  ENVIRONMENT "NCCL_LAUNCH_ORDER_IMPLICIT=1;CP_EMULATED_NCCL_CONCURRENT=1;OPENBLAS_NUM_THREADS=1")
# Random steps are late (gpu/slow_steps.h), so that a wait that is missing shows.
set(slow_steps_filter "Gpu/DeviceConformance.*:NcclDevice.*:*NcclIdentity.*/2:*NcclIdentity.*/4")
foreach(seed 1 2)
  add_test(NAME NcclDeviceWithSlowSteps_${seed} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
    COMMAND emulated_gpu_test --gtest_filter=${slow_steps_filter})
  set_tests_properties(NcclDeviceWithSlowSteps_${seed} PROPERTIES LABELS emulated_slow TIMEOUT 600
    ENVIRONMENT "CP_SLOW_STEPS=${seed};OPENBLAS_NUM_THREADS=1")
endforeach()
# A profiler of NCCL's that writes calls down (witness/nccl_witness.cc). Tests look for it beside themselves.
add_library(nccl_witness MODULE witness/nccl_witness.cc)
target_link_libraries(nccl_witness PRIVATE cp_build_flags cp_warnings)
target_include_directories(nccl_witness PRIVATE ${PROJECT_SOURCE_DIR})
set_target_properties(nccl_witness PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
add_dependencies(emulated_gpu_test nccl_witness)
if(CP_HAVE_NCCL AND gpu_test_sources)
  cp_add_test(gpu_test SOURCES ${gpu_test_sources} ${gpu_test_helpers} LIBS cp::cli cp_test_support cp::runtime LABEL gpu
    TIMEOUT 600 LOCK gpu)  # one at a time: a GPU takes processes in turns
  add_dependencies(gpu_test nccl_witness)
  # Once more as cprun starts ranks (runtime/nccl/nccl_environment.h), where NCCL keeps communicators in order and the device does
  # not, and with late steps. Each in a process of its own, which forks.
  set(identity GeneratedScenariosLeaveTheTracesOfTheSimulatedFabric)
  foreach(test NcclDevice.ManyGroupsAreMadeInOneOrderAndKeepTheirs Gpu/DeviceConformance.GroupsRunOnStreamsOfTheirOwn/Nccl
      Ranks/NcclIdentity.${identity}/6 Ranks/NcclIdentity.${identity}/8 NcclDroppedEdges.OfRingsAreFound)
    add_test(NAME ${test}WithLaunchOrder WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} COMMAND gpu_test --gtest_filter=${test})
    set_tests_properties(${test}WithLaunchOrder PROPERTIES LABELS gpu TIMEOUT 600 RESOURCE_LOCK gpu
      ENVIRONMENT "NCCL_LAUNCH_ORDER_IMPLICIT=1;CUDA_DEVICE_MAX_CONNECTIONS=32;NCCL_SOCKET_MAGIC=0x6370696d6f726472;OPENBLAS_NUM_THREADS=1")
  endforeach()
  foreach(test Gpu/DeviceConformance.GroupsRunOnStreamsOfTheirOwn/Nccl NcclDevice.RunsTheHandPlansLikeTheFabric
      Ranks/NcclIdentity.${identity}/4)
    add_test(NAME ${test}WithSlowSteps WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} COMMAND gpu_test --gtest_filter=${test})
    set_tests_properties(${test}WithSlowSteps PROPERTIES LABELS gpu TIMEOUT 600 RESOURCE_LOCK gpu
      ENVIRONMENT "CP_SLOW_STEPS=1;OPENBLAS_NUM_THREADS=1")
  endforeach()
endif()

# What runs on several threads, alone, for the thread sanitizer: links no more than it needs, and is built on request.
set(thread_sources ${gpu_test_sources})
list(FILTER thread_sources INCLUDE REGEX "/(gpu_ranks|slow_steps|nccl_(conformance|device|failure|refusal|times)_test)\\.cc$")
set(thread_emulation_sources ${emulation_test_sources})
list(FILTER thread_emulation_sources EXCLUDE REGEX "_identity_test\\.cc$")  # of scenarios, which stand on sim/
file(GLOB hand_plan_sources CONFIGURE_DEPENDS "support/hand_*.cc")
cp_add_executable(emulated_threads_test ${thread_sources} ${thread_emulation_sources} runtime/processes.cc rendezvous/test_job.cc
  conformance/device_suite.cc conformance/collectives_conformance_test.cc conformance/streams_conformance_test.cc
  conformance/kept_conformance_test.cc conformance/process_world.cc support/values.cc support/attention_definition.cc support/fabric_run.cc ${hand_plan_sources})
set_target_properties(emulated_threads_test PROPERTIES EXCLUDE_FROM_ALL ON)
set_property(GLOBAL APPEND PROPERTY CP_TEST_PROGRAMS emulated_threads_test)
target_link_libraries(emulated_threads_test PRIVATE cp_emulated_runtime cp::fabric ${cp_test_frameworks} cp_test_flags)

if(TARGET cp_cprun)
  cp_add_executable(cprun_emulated $<TARGET_OBJECTS:cp_cprun>)
  target_link_libraries(cprun_emulated PRIVATE cp::cli cp_emulated_runtime)
  foreach(program late_rank passes_rank)
    cp_add_executable(${program}_emulated cprun/${program}.cc)
    target_link_libraries(${program}_emulated PRIVATE cp_emulated_runtime)
  endforeach()
  set(examples ${PROJECT_SOURCE_DIR}/examples)
  set_source_files_properties(${examples}/own_kernels.cu PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-x;c++")
  cp_add_executable(prepared_attention_emulated ${examples}/prepared_attention.cc ${examples}/own_kernels_host.cc
    ${examples}/own_kernels.cu)
  target_link_libraries(prepared_attention_emulated PRIVATE cp_emulated_runtime)
endif()

# For the test of scripts/gpu_hour: that the benchmarks run and are read, not how long they take.
find_package(benchmark QUIET)
if(benchmark_FOUND)
  file(GLOB gpu_benchmark_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/benchmarks/gpu/*.cc")
  cp_add_executable(gpu_benchmark_emulated ${gpu_benchmark_sources})
  target_link_libraries(gpu_benchmark_emulated PRIVATE cp::shared cp::sim cp_emulated_runtime benchmark::benchmark)
endif()

find_package(Python3 3.9 QUIET COMPONENTS Interpreter)
if(Python3_FOUND AND TARGET cprun_emulated AND TARGET cpsim AND NOT CP_SANITIZE)
  add_test(NAME GpuHour.OnTheEmulatedGpu WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
    COMMAND ${Python3_EXECUTABLE} tests/emulated_gpu/gpu_hour_test.py ${CMAKE_BINARY_DIR})
  set_tests_properties(GpuHour.OnTheEmulatedGpu PROPERTIES LABELS emulated_slow TIMEOUT 1800 COST 50)
endif()
