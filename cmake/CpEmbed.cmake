# cp_embed_texts(<target> <function> <file>...): compiles the files into the target; cp::sim::<function>(), which
# sim/cost/presets/embedded.h declares, returns them with their names, which are the files' without the last extension.
function(cp_embed_texts target function)
  set(output ${CMAKE_BINARY_DIR}/generated/embedded/${function}.cc)
  # Rewritten when the list changes; the contents are a dependency of the build.
  add_custom_command(
    OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DOUTPUT=${output} -DFUNCTION=${function} "-DFILES=${ARGN}"
            -P ${PROJECT_SOURCE_DIR}/cmake/CpEmbedTexts.cmake
    DEPENDS ${ARGN} ${PROJECT_SOURCE_DIR}/cmake/CpEmbedTexts.cmake
    COMMENT "Embedding ${function}"
    VERBATIM)
  target_sources(${target} PRIVATE ${output})
endfunction()
