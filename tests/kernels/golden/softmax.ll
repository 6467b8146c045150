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
  %pass1.r0 = phi <16 x float> [splat (float 0x8000000000000000), %pass0.done], [%v100, %pass1.full]
  %v66 = icmp slt i64 %pass1.k, %v14
  br i1 %v66, label %pass1.full, label %pass1.end
pass1.full:
  %v67 = getelementptr float, ptr %v18, i64 %pass1.k
  %v68 = load <16 x float>, ptr %v67, align 4
  %v69 = insertelement <16 x float> poison, float %v65, i64 0
  %v70 = shufflevector <16 x float> %v69, <16 x float> poison, <16 x i32> zeroinitializer
  %v71 = fsub <16 x float> %v68, %v70
  %v72 = fcmp olt <16 x float> %v71, splat (float 0xC05A000000000000)
  %v73 = select <16 x i1> %v72, <16 x float> splat (float 0x0000000000000000), <16 x float> %v71
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
  %v98 = select <16 x i1> %v72, <16 x float> splat (float 0x0000000000000000), <16 x float> %v97
  %v99 = getelementptr float, ptr %v5, i64 %pass1.k
  store <16 x float> %v98, ptr %v99, align 4
  %v100 = fadd <16 x float> %pass1.r0, %v98
  %pass1.next = add i64 %pass1.k, 16
  br label %pass1
pass1.end:
  %v101 = icmp ne i64 %v15, 0
  br i1 %v101, label %pass1.rest, label %pass1.done
pass1.rest:
  %v102 = insertelement <16 x i64> poison, i64 %v15, i64 0
  %v103 = shufflevector <16 x i64> %v102, <16 x i64> poison, <16 x i32> zeroinitializer
  %v104 = icmp ult <16 x i64> <i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7, i64 8, i64 9, i64 10, i64 11, i64 12, i64 13, i64 14, i64 15>, %v103
  %v105 = getelementptr float, ptr %v18, i64 %v14
  %v106 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr align 4 %v105, <16 x i1> %v104, <16 x float> zeroinitializer)
  %v107 = insertelement <16 x float> poison, float %v65, i64 0
  %v108 = shufflevector <16 x float> %v107, <16 x float> poison, <16 x i32> zeroinitializer
  %v109 = fsub <16 x float> %v106, %v108
  %v110 = fcmp olt <16 x float> %v109, splat (float 0xC05A000000000000)
  %v111 = select <16 x i1> %v110, <16 x float> splat (float 0x0000000000000000), <16 x float> %v109
  %v112 = fcmp olt <16 x float> splat (float 0x4056400000000000), %v111
  %v113 = select <16 x i1> %v112, <16 x float> splat (float 0x4056400000000000), <16 x float> %v111
  %v114 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v113, <16 x float> splat (float 0x3FF7154760000000), <16 x float> splat (float 0x4168000000000000))
  %v115 = fsub <16 x float> %v114, splat (float 0x4168000000000000)
  %v116 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v115, <16 x float> splat (float 0xBFE62E4000000000), <16 x float> %v113)
  %v117 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v115, <16 x float> splat (float 0xBEB7F7D1C0000000), <16 x float> %v116)
  %v118 = call <16 x float> @llvm.fma.v16f32(<16 x float> splat (float 0x3F56940000000000), <16 x float> %v117, <16 x float> splat (float 0x3F8125EDC0000000))
  %v119 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v118, <16 x float> %v117, <16 x float> splat (float 0x3FA555B5A0000000))
  %v120 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v119, <16 x float> %v117, <16 x float> splat (float 0x3FC5554500000000))
  %v121 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v120, <16 x float> %v117, <16 x float> splat (float 0x3FDFFFFF60000000))
  %v122 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v121, <16 x float> %v117, <16 x float> splat (float 0x3FF0000000000000))
  %v123 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v122, <16 x float> %v117, <16 x float> splat (float 0x3FF0000000000000))
  %v124 = bitcast <16 x float> %v114 to <16 x i32>
  %v125 = sub <16 x i32> %v124, splat (i32 1262485504)
  %v126 = ashr <16 x i32> %v125, splat (i32 1)
  %v127 = add <16 x i32> %v126, splat (i32 127)
  %v128 = shl <16 x i32> %v127, splat (i32 23)
  %v129 = bitcast <16 x i32> %v128 to <16 x float>
  %v130 = fmul <16 x float> %v123, %v129
  %v131 = sub <16 x i32> %v125, %v126
  %v132 = add <16 x i32> %v131, splat (i32 127)
  %v133 = shl <16 x i32> %v132, splat (i32 23)
  %v134 = bitcast <16 x i32> %v133 to <16 x float>
  %v135 = fmul <16 x float> %v130, %v134
  %v136 = select <16 x i1> %v110, <16 x float> splat (float 0x0000000000000000), <16 x float> %v135
  %v137 = getelementptr float, ptr %v5, i64 %v14
  call void @llvm.masked.store.v16f32.p0(<16 x float> %v136, ptr align 4 %v137, <16 x i1> %v104)
  %v138 = select <16 x i1> %v104, <16 x float> %v136, <16 x float> splat (float 0x0000000000000000)
  %v139 = fadd <16 x float> %pass1.r0, %v138
  br label %pass1.done
pass1.done:
  %v140 = phi <16 x float> [%pass1.r0, %pass1.end], [%v139, %pass1.rest]
  %v141 = shufflevector <16 x float> %v140, <16 x float> poison, <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>
  %v142 = shufflevector <16 x float> %v140, <16 x float> poison, <8 x i32> <i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>
  %v143 = fadd <8 x float> %v141, %v142
  %v144 = shufflevector <8 x float> %v143, <8 x float> poison, <4 x i32> <i32 0, i32 1, i32 2, i32 3>
  %v145 = shufflevector <8 x float> %v143, <8 x float> poison, <4 x i32> <i32 4, i32 5, i32 6, i32 7>
  %v146 = fadd <4 x float> %v144, %v145
  %v147 = shufflevector <4 x float> %v146, <4 x float> poison, <2 x i32> <i32 0, i32 1>
  %v148 = shufflevector <4 x float> %v146, <4 x float> poison, <2 x i32> <i32 2, i32 3>
  %v149 = fadd <2 x float> %v147, %v148
  %v150 = shufflevector <2 x float> %v149, <2 x float> poison, <1 x i32> <i32 0>
  %v151 = shufflevector <2 x float> %v149, <2 x float> poison, <1 x i32> <i32 1>
  %v152 = extractelement <1 x float> %v150, i64 0
  %v153 = extractelement <1 x float> %v151, i64 0
  %v154 = fadd float %v152, %v153
  br label %pass2
pass2:
  %pass2.k = phi i64 [0, %pass1.done], [%pass2.next, %pass2.full]
  %v155 = icmp slt i64 %pass2.k, %v14
  br i1 %v155, label %pass2.full, label %pass2.end
pass2.full:
  %v156 = getelementptr float, ptr %v5, i64 %pass2.k
  %v157 = load <16 x float>, ptr %v156, align 4
  %v158 = insertelement <16 x float> poison, float %v154, i64 0
  %v159 = shufflevector <16 x float> %v158, <16 x float> poison, <16 x i32> zeroinitializer
  %v160 = fdiv <16 x float> %v157, %v159
  %v161 = getelementptr float, ptr %v20, i64 %pass2.k
  store <16 x float> %v160, ptr %v161, align 4
  %pass2.next = add i64 %pass2.k, 16
  br label %pass2
pass2.end:
  %v162 = icmp ne i64 %v15, 0
  br i1 %v162, label %pass2.rest, label %pass2.done
pass2.rest:
  %v163 = insertelement <16 x i64> poison, i64 %v15, i64 0
  %v164 = shufflevector <16 x i64> %v163, <16 x i64> poison, <16 x i32> zeroinitializer
  %v165 = icmp ult <16 x i64> <i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7, i64 8, i64 9, i64 10, i64 11, i64 12, i64 13, i64 14, i64 15>, %v164
  %v166 = getelementptr float, ptr %v5, i64 %v14
  %v167 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr align 4 %v166, <16 x i1> %v165, <16 x float> zeroinitializer)
  %v168 = insertelement <16 x float> poison, float %v154, i64 0
  %v169 = shufflevector <16 x float> %v168, <16 x float> poison, <16 x i32> zeroinitializer
  %v170 = fdiv <16 x float> %v167, %v169
  %v171 = getelementptr float, ptr %v20, i64 %v14
  call void @llvm.masked.store.v16f32.p0(<16 x float> %v170, ptr align 4 %v171, <16 x i1> %v165)
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
