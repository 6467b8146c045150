define void @loop(ptr %args) #0 {
entry:
  %v0 = getelementptr i64, ptr %args, i64 0
  %v1 = load ptr, ptr %v0
  %v2 = getelementptr i64, ptr %args, i64 1
  %v3 = load ptr, ptr %v2
  %v4 = getelementptr i64, ptr %args, i64 2
  %v5 = load ptr, ptr %v4
  %v6 = getelementptr i64, ptr %args, i64 3
  %v7 = load i64, ptr %v6
  %v8 = getelementptr i64, ptr %args, i64 4
  %v9 = load i64, ptr %v8
  %v10 = getelementptr i64, ptr %args, i64 5
  %v11 = load i64, ptr %v10
  %v12 = getelementptr i64, ptr %args, i64 6
  %v13 = load i64, ptr %v12
  %v14 = and i64 %v7, -16
  %v15 = sub i64 %v7, %v14
  br label %axis0
axis0:
  %i0 = phi i64 [0, %entry], [%n0, %end0]
  %v16 = icmp slt i64 %i0, %v9
  br i1 %v16, label %in0, label %exit
in0:
  %v17 = mul i64 %i0, %v11
  %v18 = getelementptr i8, ptr %v1, i64 %v17
  %v19 = mul i64 %i0, %v13
  %v20 = getelementptr i8, ptr %v3, i64 %v19
  br label %pass0
pass0:
  %pass0.k = phi i64 [0, %in0], [%pass0.next, %pass0.full]
  %pass0.r0 = phi <16 x float> [splat (float 0xFFF0000000000000), %in0], [%v27, %pass0.full]
  %v21 = icmp slt i64 %pass0.k, %v14
  br i1 %v21, label %pass0.full, label %pass0.end
pass0.full:
  %v22 = getelementptr float, ptr %v18, i64 %pass0.k
  %v23 = load <16 x float>, ptr %v22, align 4
  %v24 = fcmp ogt <16 x float> %pass0.r0, %v23
  %v25 = select <16 x i1> %v24, <16 x float> %pass0.r0, <16 x float> %v23
  %v26 = fcmp uno <16 x float> %pass0.r0, %pass0.r0
  %v27 = select <16 x i1> %v26, <16 x float> %pass0.r0, <16 x float> %v25
  %pass0.next = add i64 %pass0.k, 16
  br label %pass0
pass0.end:
  %v28 = icmp ne i64 %v15, 0
  br i1 %v28, label %pass0.rest, label %pass0.done
pass0.rest:
  %v29 = insertelement <16 x i64> poison, i64 %v15, i64 0
  %v30 = shufflevector <16 x i64> %v29, <16 x i64> poison, <16 x i32> zeroinitializer
  %v31 = icmp ult <16 x i64> <i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7, i64 8, i64 9, i64 10, i64 11, i64 12, i64 13, i64 14, i64 15>, %v30
  %v32 = getelementptr float, ptr %v18, i64 %v14
  %v33 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr align 4 %v32, <16 x i1> %v31, <16 x float> zeroinitializer)
  %v34 = select <16 x i1> %v31, <16 x float> %v33, <16 x float> splat (float 0xFFF0000000000000)
  %v35 = fcmp ogt <16 x float> %pass0.r0, %v34
  %v36 = select <16 x i1> %v35, <16 x float> %pass0.r0, <16 x float> %v34
  %v37 = fcmp uno <16 x float> %pass0.r0, %pass0.r0
  %v38 = select <16 x i1> %v37, <16 x float> %pass0.r0, <16 x float> %v36
  br label %pass0.done
pass0.done:
  %v39 = phi <16 x float> [%pass0.r0, %pass0.end], [%v38, %pass0.rest]
  %v40 = shufflevector <16 x float> %v39, <16 x float> poison, <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>
  %v41 = shufflevector <16 x float> %v39, <16 x float> poison, <8 x i32> <i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>
  %v42 = fcmp ogt <8 x float> %v40, %v41
  %v43 = select <8 x i1> %v42, <8 x float> %v40, <8 x float> %v41
  %v44 = fcmp uno <8 x float> %v40, %v40
  %v45 = select <8 x i1> %v44, <8 x float> %v40, <8 x float> %v43
  %v46 = shufflevector <8 x float> %v45, <8 x float> poison, <4 x i32> <i32 0, i32 1, i32 2, i32 3>
  %v47 = shufflevector <8 x float> %v45, <8 x float> poison, <4 x i32> <i32 4, i32 5, i32 6, i32 7>
  %v48 = fcmp ogt <4 x float> %v46, %v47
  %v49 = select <4 x i1> %v48, <4 x float> %v46, <4 x float> %v47
  %v50 = fcmp uno <4 x float> %v46, %v46
  %v51 = select <4 x i1> %v50, <4 x float> %v46, <4 x float> %v49
  %v52 = shufflevector <4 x float> %v51, <4 x float> poison, <2 x i32> <i32 0, i32 1>
  %v53 = shufflevector <4 x float> %v51, <4 x float> poison, <2 x i32> <i32 2, i32 3>
  %v54 = fcmp ogt <2 x float> %v52, %v53
  %v55 = select <2 x i1> %v54, <2 x float> %v52, <2 x float> %v53
  %v56 = fcmp uno <2 x float> %v52, %v52
  %v57 = select <2 x i1> %v56, <2 x float> %v52, <2 x float> %v55
  %v58 = shufflevector <2 x float> %v57, <2 x float> poison, <1 x i32> <i32 0>
  %v59 = shufflevector <2 x float> %v57, <2 x float> poison, <1 x i32> <i32 1>
  %v60 = extractelement <1 x float> %v58, i64 0
  %v61 = extractelement <1 x float> %v59, i64 0
  %v62 = fcmp ogt float %v60, %v61
  %v63 = select i1 %v62, float %v60, float %v61
  %v64 = fcmp uno float %v60, %v60
  %v65 = select i1 %v64, float %v60, float %v63
  br label %pass1
pass1:
  %pass1.k = phi i64 [0, %pass0.done], [%pass1.next, %pass1.full]
  %pass1.r0 = phi <16 x float> [splat (float 0x8000000000000000), %pass0.done], [%v99, %pass1.full]
  %v66 = icmp slt i64 %pass1.k, %v14
  br i1 %v66, label %pass1.full, label %pass1.end
pass1.full:
  %v67 = getelementptr float, ptr %v18, i64 %pass1.k
  %v68 = load <16 x float>, ptr %v67, align 4
  %v69 = insertelement <16 x float> poison, float %v65, i64 0
  %v70 = shufflevector <16 x float> %v69, <16 x float> poison, <16 x i32> zeroinitializer
  %v71 = fsub <16 x float> %v68, %v70
  %v72 = fcmp ogt <16 x float> splat (float 0xC05A000000000000), %v71
  %v73 = select <16 x i1> %v72, <16 x float> splat (float 0xC05A000000000000), <16 x float> %v71
  %v74 = fcmp olt <16 x float> splat (float 0x4056400000000000), %v73
  %v75 = select <16 x i1> %v74, <16 x float> splat (float 0x4056400000000000), <16 x float> %v73
  %v76 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v75, <16 x float> splat (float 0x3FF7154760000000), <16 x float> splat (float 0x4168000000000000))
  %v77 = fsub <16 x float> %v76, splat (float 0x4168000000000000)
  %v78 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v77, <16 x float> splat (float 0xBFE62E4000000000), <16 x float> %v75)
  %v79 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v77, <16 x float> splat (float 0xBEB7F7D1C0000000), <16 x float> %v78)
  %v80 = call <16 x float> @llvm.fma.v16f32(<16 x float> splat (float 0x3F56940000000000), <16 x float> %v79, <16 x float> splat (float 0x3F8125EDC0000000))
  %v81 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v80, <16 x float> %v79, <16 x float> splat (float 0x3FA555B5A0000000))
  %v82 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v81, <16 x float> %v79, <16 x float> splat (float 0x3FC5554500000000))
  %v83 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v82, <16 x float> %v79, <16 x float> splat (float 0x3FDFFFFF60000000))
  %v84 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v83, <16 x float> %v79, <16 x float> splat (float 0x3FF0000000000000))
  %v85 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v84, <16 x float> %v79, <16 x float> splat (float 0x3FF0000000000000))
  %v86 = bitcast <16 x float> %v76 to <16 x i32>
  %v87 = sub <16 x i32> %v86, splat (i32 1262485504)
  %v88 = ashr <16 x i32> %v87, splat (i32 1)
  %v89 = add <16 x i32> %v88, splat (i32 127)
  %v90 = shl <16 x i32> %v89, splat (i32 23)
  %v91 = bitcast <16 x i32> %v90 to <16 x float>
  %v92 = fmul <16 x float> %v85, %v91
  %v93 = sub <16 x i32> %v87, %v88
  %v94 = add <16 x i32> %v93, splat (i32 127)
  %v95 = shl <16 x i32> %v94, splat (i32 23)
  %v96 = bitcast <16 x i32> %v95 to <16 x float>
  %v97 = fmul <16 x float> %v92, %v96
  %v98 = getelementptr float, ptr %v5, i64 %pass1.k
  store <16 x float> %v97, ptr %v98, align 4
  %v99 = fadd <16 x float> %pass1.r0, %v97
  %pass1.next = add i64 %pass1.k, 16
  br label %pass1
pass1.end:
  %v100 = icmp ne i64 %v15, 0
  br i1 %v100, label %pass1.rest, label %pass1.done
pass1.rest:
  %v101 = insertelement <16 x i64> poison, i64 %v15, i64 0
  %v102 = shufflevector <16 x i64> %v101, <16 x i64> poison, <16 x i32> zeroinitializer
  %v103 = icmp ult <16 x i64> <i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7, i64 8, i64 9, i64 10, i64 11, i64 12, i64 13, i64 14, i64 15>, %v102
  %v104 = getelementptr float, ptr %v18, i64 %v14
  %v105 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr align 4 %v104, <16 x i1> %v103, <16 x float> zeroinitializer)
  %v106 = insertelement <16 x float> poison, float %v65, i64 0
  %v107 = shufflevector <16 x float> %v106, <16 x float> poison, <16 x i32> zeroinitializer
  %v108 = fsub <16 x float> %v105, %v107
  %v109 = fcmp ogt <16 x float> splat (float 0xC05A000000000000), %v108
  %v110 = select <16 x i1> %v109, <16 x float> splat (float 0xC05A000000000000), <16 x float> %v108
  %v111 = fcmp olt <16 x float> splat (float 0x4056400000000000), %v110
  %v112 = select <16 x i1> %v111, <16 x float> splat (float 0x4056400000000000), <16 x float> %v110
  %v113 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v112, <16 x float> splat (float 0x3FF7154760000000), <16 x float> splat (float 0x4168000000000000))
  %v114 = fsub <16 x float> %v113, splat (float 0x4168000000000000)
  %v115 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v114, <16 x float> splat (float 0xBFE62E4000000000), <16 x float> %v112)
  %v116 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v114, <16 x float> splat (float 0xBEB7F7D1C0000000), <16 x float> %v115)
  %v117 = call <16 x float> @llvm.fma.v16f32(<16 x float> splat (float 0x3F56940000000000), <16 x float> %v116, <16 x float> splat (float 0x3F8125EDC0000000))
  %v118 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v117, <16 x float> %v116, <16 x float> splat (float 0x3FA555B5A0000000))
  %v119 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v118, <16 x float> %v116, <16 x float> splat (float 0x3FC5554500000000))
  %v120 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v119, <16 x float> %v116, <16 x float> splat (float 0x3FDFFFFF60000000))
  %v121 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v120, <16 x float> %v116, <16 x float> splat (float 0x3FF0000000000000))
  %v122 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v121, <16 x float> %v116, <16 x float> splat (float 0x3FF0000000000000))
  %v123 = bitcast <16 x float> %v113 to <16 x i32>
  %v124 = sub <16 x i32> %v123, splat (i32 1262485504)
  %v125 = ashr <16 x i32> %v124, splat (i32 1)
  %v126 = add <16 x i32> %v125, splat (i32 127)
  %v127 = shl <16 x i32> %v126, splat (i32 23)
  %v128 = bitcast <16 x i32> %v127 to <16 x float>
  %v129 = fmul <16 x float> %v122, %v128
  %v130 = sub <16 x i32> %v124, %v125
  %v131 = add <16 x i32> %v130, splat (i32 127)
  %v132 = shl <16 x i32> %v131, splat (i32 23)
  %v133 = bitcast <16 x i32> %v132 to <16 x float>
  %v134 = fmul <16 x float> %v129, %v133
  %v135 = getelementptr float, ptr %v5, i64 %v14
  call void @llvm.masked.store.v16f32.p0(<16 x float> %v134, ptr align 4 %v135, <16 x i1> %v103)
  %v136 = select <16 x i1> %v103, <16 x float> %v134, <16 x float> splat (float 0x0000000000000000)
  %v137 = fadd <16 x float> %pass1.r0, %v136
  br label %pass1.done
pass1.done:
  %v138 = phi <16 x float> [%pass1.r0, %pass1.end], [%v137, %pass1.rest]
  %v139 = shufflevector <16 x float> %v138, <16 x float> poison, <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>
  %v140 = shufflevector <16 x float> %v138, <16 x float> poison, <8 x i32> <i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>
  %v141 = fadd <8 x float> %v139, %v140
  %v142 = shufflevector <8 x float> %v141, <8 x float> poison, <4 x i32> <i32 0, i32 1, i32 2, i32 3>
  %v143 = shufflevector <8 x float> %v141, <8 x float> poison, <4 x i32> <i32 4, i32 5, i32 6, i32 7>
  %v144 = fadd <4 x float> %v142, %v143
  %v145 = shufflevector <4 x float> %v144, <4 x float> poison, <2 x i32> <i32 0, i32 1>
  %v146 = shufflevector <4 x float> %v144, <4 x float> poison, <2 x i32> <i32 2, i32 3>
  %v147 = fadd <2 x float> %v145, %v146
  %v148 = shufflevector <2 x float> %v147, <2 x float> poison, <1 x i32> <i32 0>
  %v149 = shufflevector <2 x float> %v147, <2 x float> poison, <1 x i32> <i32 1>
  %v150 = extractelement <1 x float> %v148, i64 0
  %v151 = extractelement <1 x float> %v149, i64 0
  %v152 = fadd float %v150, %v151
  br label %pass2
pass2:
  %pass2.k = phi i64 [0, %pass1.done], [%pass2.next, %pass2.full]
  %v153 = icmp slt i64 %pass2.k, %v14
  br i1 %v153, label %pass2.full, label %pass2.end
pass2.full:
  %v154 = getelementptr float, ptr %v5, i64 %pass2.k
  %v155 = load <16 x float>, ptr %v154, align 4
  %v156 = insertelement <16 x float> poison, float %v152, i64 0
  %v157 = shufflevector <16 x float> %v156, <16 x float> poison, <16 x i32> zeroinitializer
  %v158 = fdiv <16 x float> %v155, %v157
  %v159 = getelementptr float, ptr %v20, i64 %pass2.k
  store <16 x float> %v158, ptr %v159, align 4
  %pass2.next = add i64 %pass2.k, 16
  br label %pass2
pass2.end:
  %v160 = icmp ne i64 %v15, 0
  br i1 %v160, label %pass2.rest, label %pass2.done
pass2.rest:
  %v161 = insertelement <16 x i64> poison, i64 %v15, i64 0
  %v162 = shufflevector <16 x i64> %v161, <16 x i64> poison, <16 x i32> zeroinitializer
  %v163 = icmp ult <16 x i64> <i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7, i64 8, i64 9, i64 10, i64 11, i64 12, i64 13, i64 14, i64 15>, %v162
  %v164 = getelementptr float, ptr %v5, i64 %v14
  %v165 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr align 4 %v164, <16 x i1> %v163, <16 x float> zeroinitializer)
  %v166 = insertelement <16 x float> poison, float %v152, i64 0
  %v167 = shufflevector <16 x float> %v166, <16 x float> poison, <16 x i32> zeroinitializer
  %v168 = fdiv <16 x float> %v165, %v167
  %v169 = getelementptr float, ptr %v20, i64 %v14
  call void @llvm.masked.store.v16f32.p0(<16 x float> %v168, ptr align 4 %v169, <16 x i1> %v163)
  br label %pass2.done
pass2.done:
  br label %end0
end0:
  %n0 = add i64 %i0, 1
  br label %axis0
exit:
  ret void
}

declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)
declare <16 x float> @llvm.masked.load.v16f32.p0(ptr, <16 x i1>, <16 x float>)
declare void @llvm.masked.store.v16f32.p0(<16 x float>, ptr, <16 x i1>)

attributes #0 = { nounwind "prefer-vector-width"="512" }
