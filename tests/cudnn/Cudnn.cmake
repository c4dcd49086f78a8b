# What cuDNN says about GPUs that are not there; needs the library, and no GPU.
add_library(cp_fake_driver SHARED fake_driver/fake_driver.cc)
target_link_libraries(cp_fake_driver PRIVATE cp_warnings)
set_target_properties(cp_fake_driver PROPERTIES OUTPUT_NAME cuda SOVERSION 1
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/fake_driver)

file(GLOB cudnn_sources CONFIGURE_DEPENDS "cudnn/*.cc")
cp_add_test(cudnn_test SOURCES ${cudnn_sources} LIBS cp::gpu LABEL cudnn TIMEOUT 300 COST 20)
add_dependencies(cudnn_test cp_fake_driver)
target_compile_definitions(cudnn_test PRIVATE CP_FAKE_DRIVER="$<TARGET_SONAME_FILE:cp_fake_driver>")
